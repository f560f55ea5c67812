"""Small answers that were reported to go wrong somewhere, in every cut in two, one token at a time, and whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from scaleout import parsers
from scaleout.core import Content, Piece, Tool, ToolArguments, ToolStart
from scaleout.parsers import FORMATS, Format
from tests.parsers.answers import Answer, parse, split_at_tokens


def pieces_of(format: Format, text: str) -> list[Piece]:
    return split_at_tokens(text, (*format.tokens, *format.end_tokens))


def answer_in_every_cut(format: Format, text: str, *, tail: str = "", tools: Sequence[Tool] = ()) -> Answer:
    """The one answer that all cuts give."""
    state = parsers.begin(format, pieces_of(format, tail), tools=tools)
    pieces = pieces_of(format, text)
    whole = parse(format, state, [pieces])
    letters = [one for piece in pieces for one in ([piece] if piece.marker else map(Piece, piece.text))]
    assert parse(format, state, [[one] for one in letters], as_json=True) == whole
    for place in range(len(letters)):
        assert parse(format, state, [letters[:place], letters[place:]], as_json=True) == whole
    return whole


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def tool(name: str, **parameters: Any) -> Tool:
    return Tool(name, parameters={"type": "object", "properties": parameters})


# C01
@pytest.mark.parametrize("as_token", [True, False])
def test_closing_tag_inside_a_string(as_token: bool) -> None:
    format = FORMATS["hermes"]
    head, rest = '\n{"name": "write_file", "arguments": {"path": "a.md", "text": "close with ', ' here"}}\n'
    tag = Piece("</tool_call>", marker=as_token)
    pieces = [Piece("<tool_call>", marker=True), Piece(head), tag, Piece(rest), Piece("</tool_call>", marker=True)]
    state = parsers.begin(format, ())
    answer = parse(format, state, [pieces])
    assert answer == parse(format, state, [[piece] for piece in pieces], as_json=True)
    assert calls_of(answer) == [("write_file", {"path": "a.md", "text": "close with </tool_call> here"})]
    assert answer.content is None


# C02
LAST_BRACES = (
    *('{"n": 3}', '{"ok": true}', "{}", '{"xs": [1, 2]}', '{"a": {"b": {"c": 0.8}}}'),
    '{"speed": 23, "ratio": 0.8, "code": "", "unit": "M6"}',
)


@pytest.mark.parametrize("arguments", LAST_BRACES)
def test_last_braces(arguments: str) -> None:
    answer = answer_in_every_cut(FORMATS["hermes"], f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert [(call.arguments, call.status) for call in answer.calls] == [(arguments, "ok")]


# C04
def test_a_shorter_name_is_never_guessed() -> None:
    format = FORMATS["glm47"]
    tools = [tool("now_utc"), tool("now")]
    _, events = parsers.feed(format, parsers.begin(format, (), tools=tools), pieces_of(format, "<tool_call>now"))
    assert events == []
    answer = answer_in_every_cut(format, "<tool_call>now_utc</tool_call>", tools=tools, tail="</think>")
    assert calls_of(answer) == [("now_utc", {})]


# C05
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lookup<arg_key>phrase</arg_key>days off in May</arg_value>", ("lookup", {"phrase": "days off in May"})),
        ("open<arg_key>file</arg_key></arg_key><arg_value>/srv/a</arg_value>", ("open", {"file": "/srv/a"})),
        ("open<arg_key><arg_key>file</arg_key><arg_value>/srv/a</arg_value>", ("open", {"file": "/srv/a"})),
    ],
)
def test_missing_and_stray_tags(text: str, expected: tuple[str, Any]) -> None:
    answer = answer_in_every_cut(FORMATS["glm47"], f"<tool_call>{text}</tool_call>")
    assert (calls_of(answer), answer.content) == ([expected], None)


def test_a_value_that_cannot_be_recovered_stays_visible() -> None:
    answer = answer_in_every_cut(FORMATS["glm47"], "<tool_call>f<arg_key>k</arg_key>lost words</tool_call>")
    assert (calls_of(answer), answer.content) == ([("f", {})], "lost words")


# C06
BOOK = tool(
    "book",
    n={"type": "integer"},
    price={"type": "number"},
    flag={"type": "boolean"},
    zip={"type": "string"},
    note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    tags={"type": "array", "items": {"type": "string"}},
    opts={"type": "object"},
)
RUNS = [
    (
        {
            "n": "10",
            "price": "2.5",
            "flag": "True",
            "zip": "00123",
            "note": "hi",
            "tags": '["a", "b"]',
            "opts": '{"x": 1}',
        },
        {"n": 10, "price": 2.5, "flag": True, "zip": "00123", "note": "hi", "tags": ["a", "b"], "opts": {"x": 1}},
    ),
    ({"n": "10", "note": "null", "zip": "null"}, {"n": 10, "note": None, "zip": "null"}),
]


def _lines(values: dict[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=book>\n{inner}</function>\n</tool_call>"


def _pairs(values: dict[str, str]) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
    return f"<tool_call>book{inner}</tool_call>"


def _invoke(values: dict[str, str]) -> str:
    inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
    return f'<minimax:tool_call>\n<invoke name="book">\n{inner}</invoke>\n</minimax:tool_call>'


@pytest.mark.parametrize(("values", "expected"), RUNS, ids=["all types", "null"])
@pytest.mark.parametrize(("name", "write"), [("qwen3_coder", _lines), ("glm47", _pairs), ("minimax_m2", _invoke)])
def test_types_come_from_the_schema(name: str, write: Any, values: dict[str, str], expected: dict[str, Any]) -> None:
    answer = answer_in_every_cut(FORMATS[name], write(values), tools=[BOOK])
    assert calls_of(answer) == [("book", expected)]


# C08
def test_ids_of_the_model_and_bundled_markers() -> None:
    call = '<|tool_call_begin|>functions.get_weather:{}<|tool_call_argument_begin|>{{"city": "{}"}}<|tool_call_end|>'
    text = f"Checking.<|tool_calls_section_begin|>{call.format(0, 'Oslo')}{call.format(1, 'Rome')}<|tool_calls_section_end|>"
    answer = answer_in_every_cut(FORMATS["kimi_k2"], text)
    assert answer.content == "Checking."
    assert calls_of(answer) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]
    assert [call.id for call in answer.calls] == ["functions.get_weather:0", "functions.get_weather:1"]


# C09
_GATE = "<|channel|>analysis<|message|>Gate first.<|end|><|start|>assistant"
_BODY = '<|constrain|>json<|message|>{"zone":"north"}<|call|>'


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.open_gate ",
        " to=functions.open_gate<|channel|>commentary ",
        "<|channel|>commentary<|channel|>commentary to=functions.open_gate ",
    ],
)
def test_place_of_the_recipient(header: str) -> None:
    answer = answer_in_every_cut(FORMATS["gpt_oss"], _GATE + header + _BODY, tail="<|start|>assistant")
    assert (answer.reasoning, answer.content) == ("Gate first.", None)
    assert calls_of(answer) == [("open_gate", {"zone": "north"})]


def test_unknown_channel_is_content() -> None:
    answer = answer_in_every_cut(
        FORMATS["gpt_oss"], "<|channel|>?? odd<|message|>Hi<|return|>", tail="<|start|>assistant"
    )
    assert answer == Answer(content="Hi")


@pytest.mark.parametrize(
    ("tail", "text", "expected"),
    [
        ("<|start|>assistant<|channel|>final<|message|>", "Hi", Answer(content="Hi")),
        ("<|start|>assistant<|channel|>analysis<|message|>so ", "far", Answer(reasoning="far")),
        ("<|start|>assistant<|channel|>ana", "lysis<|message|>Hm", Answer(reasoning="Hm")),
    ],
)
def test_prompt_that_ends_inside_a_message(tail: str, text: str, expected: Answer) -> None:
    assert answer_in_every_cut(FORMATS["gpt_oss"], text, tail=tail) == expected


# C10
@pytest.mark.parametrize("tag", ["<|python_tag|>", ""])
def test_deep_nesting_and_semicolons(tag: str) -> None:
    text = (
        tag
        + '{"name": "score", "parameters": {"row": {"meta": {"age": "7"}}}}; {"name": "clock", "arguments": {"zone": "A;B"}}'
    )
    answer = answer_in_every_cut(FORMATS["llama3_json"], text)
    assert calls_of(answer) == [("score", {"row": {"meta": {"age": "7"}}}), ("clock", {"zone": "A;B"})]
    assert answer.content is None


# C12
_BASH = tool("bash", command={"type": "string"}, timeout={"type": "integer"})


def _dsml(command: str) -> str:
    parameter = '<｜DSML｜parameter name="{}" string="{}">{}</｜DSML｜parameter>\n'
    inner = parameter.format("command", "true", command) + parameter.format("timeout", "false", "30")
    return f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n{inner}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def test_value_that_ends_like_a_tag() -> None:
    answer = answer_in_every_cut(FORMATS["deepseek_v4"], _dsml("make test 2>&1"), tools=[_BASH])
    assert calls_of(answer) == [("bash", {"command": "make test 2>&1", "timeout": 30})]
    assert answer.content is None


def test_long_value_is_passed_on_as_it_comes() -> None:
    format = FORMATS["deepseek_v4"]
    state = parsers.begin(format, (), tools=[_BASH])
    deltas = []
    for piece in pieces_of(format, _dsml("echo 1234; " * 1000)):
        for n in range(0, len(piece.text), 5 if not piece.marker else 99):
            part = piece if piece.marker else Piece(piece.text[n : n + 5])
            state, events = parsers.feed(format, state, [part])
            deltas += [event for event in events if isinstance(event, ToolArguments)]
    assert len(deltas) > 1000


# C15
def test_cut_call_keeps_its_text() -> None:
    answer = answer_in_every_cut(FORMATS["hermes"], '<tool_call>{"name": "f", "arguments": {"q": "abc')
    assert [(call.name, call.arguments, call.status) for call in answer.calls] == [("f", '{"q": "abc', "unclosed")]


# C17
@pytest.mark.parametrize(
    ("text", "reasoning"),
    [("First I", "First I"), ("All set.<|im_end|>", "All set."), ("All set.\n<|im_end|>", "All set.\n")],
)
def test_cut_thought_stays_a_thought(text: str, reasoning: str) -> None:
    answer = answer_in_every_cut(FORMATS["qwen3"], text, tail="<think>\n")
    assert answer == Answer(reasoning=reasoning)


# The name is sent once, whole, before its arguments, and each event says something.
def test_form_of_the_events() -> None:
    format = FORMATS["hermes"]
    text = 'Well.\n<tool_call>\n{"name": "get_forecast", "arguments": {"place": "Oslo"}}\n</tool_call>'
    state, events = parsers.begin(format, ()), []
    for piece in pieces_of(format, text):
        for char in [piece] if piece.marker else map(Piece, piece.text):
            state, new = parsers.feed(format, state, [char])
            events += new
    assert [event for event in events if isinstance(event, ToolStart)] == [ToolStart(0, None, "get_forecast")]
    assert "".join(event.text for event in events if isinstance(event, Content)) == "Well."


def test_calls_that_the_request_does_not_allow_stay_text() -> None:
    text = 'Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for name in ("hermes", "qwen3"):
        format = FORMATS[name]
        state = parsers.begin(format, (), calls=False)
        assert parse(format, state, [pieces_of(format, text)]) == Answer(content=text)
