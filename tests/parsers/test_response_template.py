"""Templates that checkpoints ship become formats of ours, or are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaleout import parsers
from scaleout.core import Tool
from tests.parsers.answers import Answer, parse, split_at_tokens
from tests.parsers.templates import TEMPLATES

WRITTEN = {
    "objects": '<think>\nhm\n</think>\n\nWell.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n<|endoftext|>',
    "tags": "hm\n</think>\n\nWell.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
    "braces": "<|channel>thought\nhm<channel|>Well.<|tool_call>call:f{a:1}<tool_call|><turn|>",
    "slots": '[THINK]hm[/THINK]Well.[TOOL_CALLS]f[ARGS]{"a": 1}</s>',
    "array": '<T>hm</T>Well.<CALLS>[{"id": "7", "tool": "f", "input": {"a": 1}}]</CALLS>',
    "python": "<T>hm</T>Well.<CALLS>[f(a=1)]</CALLS>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_read(name: str) -> None:
    template = TEMPLATES[name]
    format = parsers.find_format("hf", "hf", template)
    assert format is not None
    pieces = split_at_tokens(WRITTEN[name], (*format.tokens, *format.end_tokens))
    tail = split_at_tokens("<|im_start|>assistant\n<think>\n" if name == "tags" else "", format.tokens)
    tools = [Tool("f", parameters={"properties": {"a": {"type": "integer"}}})]
    answer = parse(format, parsers.begin(format, tail, tools=tools), [[piece] for piece in pieces], as_json=True)
    assert (answer.reasoning, answer.content) == ("hm", "Well.")
    assert [(call.name, json.loads(call.arguments), call.status) for call in answer.calls] == [("f", {"a": 1}, "ok")]
    assert answer.calls[0].id == ("7" if name == "array" else None)


def test_a_family_that_nobody_knows_may_bring_its_own() -> None:
    found = parsers.detect_format("{{ messages }}", ["<T>"], TEMPLATES["array"])
    assert found == parsers.read_response_template(TEMPLATES["array"])
    assert parsers.find_format("hf", None, TEMPLATES["array"]).thought is None  # type: ignore[union-attr]


def _calls(**field: Any) -> dict[str, Any]:
    return {"fields": {"tool_calls": {"open": "<c>", "close": "</c>", "content": "json", **field}}}


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"fields": []},
        {"fields": {"tool_calls": "yes"}},
        {"fields": {"mood": {"open": "<m>", "close": "</m>"}}},
        {"fields": {"thinking": {"open": ["<t>", 5], "close": "</t>"}}},
        {"fields": {"thinking": {"open_pattern": "<t>(a|b)+", "close": "</t>"}}},
        {"fields": {"thinking": {"open_pattern": "(?:<t>|x*)", "close": "</t>"}}},
        {"fields": {"thinking": {"close": "</t>"}}},
        _calls(content="kv-lines"),
        _calls(content="xml-inline", content_args={"tag_pattern": "<(?P<key>\\w+)>(?P<value>.*?)</(?P=key)>"}),
        _calls(transform={"function": {"name": "{content.name}"}}),
        _calls(open=None, open_pattern="<c>(?P<name>\\w+)", content_args={"string_delims": [["«", "»"]]}),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(template: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="response_template"):
        parsers.read_response_template(template)


def test_hf_needs_a_template() -> None:
    with pytest.raises(ValueError, match="response_template"):
        parsers.find_format("hf", None)


def test_empty_answer() -> None:
    format = parsers.read_response_template(TEMPLATES["objects"])
    assert parse(format, parsers.begin(format, ()), []) == Answer()
