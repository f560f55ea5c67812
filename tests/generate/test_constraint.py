"""What a demand lets through, checked on the ids of whole texts; demands that cannot be are refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

pytest.importorskip("llguidance")

import torch

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.errors import BadRequest
from scaleout.generate.constraint import Constraints
from scaleout.generate.logit_rules import rules_for
from scaleout.generate.options import ThinkingMarkers
from scaleout.generate.sequence import Sequence
from scaleout.generate.text_needs import TextNeeds
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer

pytestmark = pytest.mark.engine

EOS = 151645
Accepts = Callable[[dict[str, Any], str], bool]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(load_model_files(str(tiny_model("qwen3"))))


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints.over(tokenizer, 151936, [EOS])


@pytest.fixture
def accepts(constraints: Constraints, tokenizer: Tokenizer) -> Accepts:
    """Whether a model that says exactly this text and then ends gets through."""

    def check(demand: dict[str, Any], text: str) -> bool:
        matcher = constraints.compile(demand)
        for id in [*tokenizer.encode(text, False), EOS]:
            if not matcher.mask()[id // 8] >> id % 8 & 1:
                return False
            matcher.take([id])
        return True

    return check


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def tag(format: Any) -> dict[str, Any]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": format})}


def call(name: str, schema: Any = TOOL) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{name}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}\n</tool_call>",
    }


def said(name: str, arguments: str = '{"city": "Rome"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


FREE = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [call("a"), call("b")]}
LIST = {"type": "tags_with_separator", "tags": [call("a"), call("b")], "separator": "\n"}
OLD = {"structures": [{"begin": "<f=a>", "schema": TOOL, "end": "</f>"}], "triggers": ["<f="]}
CHAT = tag(
    {
        "type": "sequence",
        "elements": [{"type": "const_string", "value": "<|im_start|>"}, {"type": "regex", "pattern": "a/b"}],
    }
)


@pytest.mark.parametrize(
    ("demand", "good", "bad"),
    [
        ({"json": PERSON}, '{"name": "Ö 😀", "age": 3}', '{"age": 3}'),
        ({"json": json.dumps(PERSON)}, '{"name": "x"}', '{"name": "x", "more": 1}'),
        ({"json": PERSON, "disable_any_whitespace": True}, '{"name":"x","age":3}', '{"name": "x"}'),
        ({"json": {"type": "object", "properties": {"a": {}}}}, '{"a": 1, "b": 2}', '{"a": 1'),
        (
            {"json": {"type": "object", "properties": {"a": {}}}, "disable_additional_properties": True},
            '{"a": 1}',
            '{"b": 2}',
        ),
        ({"json_object": True}, '{"anything": [1, {}]}', "[1]"),
        ({"json_object": True}, '{\n                "a": 1\n}', '{"a":' + " " * 50 + "1}"),
        (tag(call("a", True)), said("a", '{\n  "any":\t1}'), said("a", '{"any":' + "\n" * 50 + "1}")),
        ({"regex": r"\d{3}-[ab]/?"}, "123-a", "12-a"),
        ({"choice": ["yes", "no", 'may"be']}, 'may"be', "maybe"),
        ({"grammar": 'start: "a" b*\nb: "b"'}, "abb", "ba"),
        ({"grammar": 'root ::= "a" b*\nb ::= "b"'}, "abb", "ba"),
        (tag({"type": "any_text"}), "anything\nat <b>all</b>", "<|im_start|>"),
        (CHAT, "<|im_start|>a/b", "a/b"),
        (tag({"type": "or", "elements": [{"type": "const_string", "value": v} for v in "ab"]}), "b", "c"),
        (tag({"type": "optional", "content": {"type": "const_string", "value": "x"}}), "", "xx"),
        (tag({"type": "star", "content": {"type": "const_string", "value": "x"}}), "xxx", "y"),
        (tag({"type": "plus", "content": {"type": "const_string", "value": "x"}}), "xx", ""),
        (
            tag({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}),
            "<a>b < c\n</a>",
            "<a>b</a>c",
        ),
        (tag({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ["!", "?"]}), "<a>so?", "<a>so."),
        (tag(call("a", True)), said("a", '{"any": [1]}'), said("a", "[1]")),
        (tag(FREE), "plain text", "<tool_call>\n{}"),
        (tag(FREE), f"Let me see. {said('b')}", f"Let me see. {said('c')}"),
        (tag(FREE), f"{said('a')} and {said('b')} done", said("a", '{"city": 3}')),
        (tag({**FREE, "stop_after_first": True}), f"So: {said('a')}", f"{said('a')}{said('b')}"),
        (tag({**FREE, "at_least_one": True}), said("a"), "no call"),
        (tag({**FREE, "excludes": ["<think>"]}), "a plain text", "a <think> text"),
        (tag(LIST), "", "\n"),
        (tag({**LIST, "at_least_one": True}), f"{said('a')}\n{said('b')}", ""),
        (tag({**LIST, "at_least_one": True, "stop_after_first": True}), said("b"), f"{said('a')}\n{said('b')}"),
        ({"structural_tag": json.dumps(OLD)}, 'x <f=a>{"city": "Rome"}</f> y', "x <f=b>"),
    ],
)
def test_demands_let_the_right_texts_through(demand: dict[str, Any], good: str, bad: str, accepts: Accepts) -> None:
    assert accepts(demand, good)
    assert not accepts(demand, bad)


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        ({}, "exactly one of json"),
        ({"json": {}, "regex": "a"}, "exactly one of json"),
        ({"json": "{"}, "structured_outputs.json cannot be read"),
        ({"json": {"type": "nothing"}}, "structured_outputs.json cannot be used"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"regex": "(a"}, "structured_outputs.regex cannot be used"),
        ({"regex": 5}, "structured_outputs.regex cannot be read"),
        ({"grammar": "start: nothing"}, "structured_outputs.grammar cannot be used"),
        ({"grammar": "root ::= ("}, "structured_outputs.grammar"),
        ({"choice": 5}, "structured_outputs.choice cannot be read"),
        ({"structural_tag": "[]"}, "must be an object"),
        (tag({"type": "nothing"}), "type 'nothing'; known are const_string"),
        (tag({"type": "tag", "begin": 5, "end": ""}), "begin is not a text"),
        (tag({**FREE, "triggers": ["<other>"]}), "triggers that begin none"),
        (tag({**FREE, "tags": []}), "no tags"),
        ({"regex": "a" * 600_000}, "longer than"),
    ],
)
def test_demands_that_cannot_be_are_refused(demand: dict[str, Any], text: str, constraints: Constraints) -> None:
    with pytest.raises(BadRequest, match=text) as refusal:
        constraints.compile(demand).mask()
    assert (refusal.value.param or "").startswith("structured_outputs")


def test_deep_demands_are_refused(constraints: Constraints) -> None:
    shape: Any = {"type": "const_string", "value": "x"}
    schema: Any = {"type": "integer"}
    for _ in range(400):
        shape = {"type": "optional", "content": shape}
        schema = {"type": "array", "items": schema}
    with pytest.raises(BadRequest, match="nested deeper"):
        constraints.compile(tag(shape))
    with pytest.raises(BadRequest, match="recursion limit"):
        constraints.compile({"json": schema})


def test_a_demand_as_hard_as_can_be_costs_bounded_time(constraints: Constraints, tokenizer: Tokenizer) -> None:
    """It may be refused, now or later; what it may not is take long."""
    started = perf_counter()
    with suppress(BadRequest):
        matcher = constraints.compile({"regex": "((((a|b|ab){1,500}){1,500}){1,500}){1,500}" + "(.*a){20}" * 5})
        for _ in range(5):
            matcher.mask()
            matcher.take(tokenizer.encode("ab", False))
    assert perf_counter() - started < 20


def test_copies_go_their_own_ways(constraints: Constraints, tokenizer: Tokenizer) -> None:
    first = constraints.compile({"choice": ["ab", "cd"]})
    second = first.copy()
    first.take(tokenizer.encode("a", False))
    second.take(tokenizer.encode("c", False))
    assert first.mask() != second.mask()


def test_a_model_may_think_first_and_is_constrained_after(constraints: Constraints, tokenizer: Tokenizer) -> None:
    start, end = (tokenizer.id_of(marker) for marker in ("<think>", "</think>"))
    assert start is not None
    assert end is not None
    yes, no = (tokenizer.encode(text, False)[0] for text in ("yes", "no"))
    needs = TextNeeds((), constraints.compile({"choice": ["yes"]}), ThinkingMarkers([start], [end]))

    def allowed(output: list[int], prompt: tuple[int, ...] = (5,), ended: bool | None = None) -> set[int]:
        request = GenerateRequest("r", prompt, sampling_params=SamplingParams(), reasoning_ended=ended)
        stream: Any = None
        sequence = Sequence(request, 0, 0, stream, frozenset([EOS]), 1000, 0, "", needs=needs)
        (rule,) = rules_for(sequence)
        for token in [*output, None]:
            row = torch.zeros(151936)
            rule(row, sequence)
            sequence.tokens += [] if token is None else [token]
        return {id for id in (start, end, yes, no, EOS) if row[id] == 0}

    assert allowed([]) == {start, yes}
    assert allowed([], ended=False) == {start, yes}
    assert allowed([], ended=True) == {yes}
    assert allowed([start]) == {start, end, yes, no, EOS}
    assert allowed([start, no]) == {start, end, yes, no, EOS}
    assert allowed([start, no, end]) == {yes}
    assert allowed([start, no, end, yes]) == {EOS}
    assert allowed([yes]) == {EOS}
    assert allowed([], prompt=(5, start)) == {start, end, yes, no, EOS}
    assert allowed([no, end], prompt=(5, start)) == {yes}
    assert allowed([], prompt=(start, 5, end)) == {yes}
