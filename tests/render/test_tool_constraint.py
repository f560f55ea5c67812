"""When calls are demanded of an engine, in which words, and what cannot be demanded. What the demands let through is tested on engines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from scaleout import parsers
from scaleout.core import ChatRequest, Message, SamplingWishes, Tool, ToolChoice
from scaleout.errors import BadRequest
from scaleout.parsers import FORMATS, Format
from scaleout.parsers.constraint import constrain_calls, shape_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
REQUEST = ChatRequest([Message("user", "q")], tools=[Tool("f", None, SCHEMA), Tool("g", None, SCHEMA, strict=True)])
REQUIRED = ToolChoice("required")
AS_PEER = [("hermes", None), ("hermes", "think"), ("hermes", "qwen3"), ("deepseek_v3", None)]


def demanded(format: Format | str = "hermes", thinking: bool = False, **fields: Any) -> Any:
    chosen = FORMATS[format] if isinstance(format, str) else format
    found = constrain_calls(chosen, evolve(REQUEST, **fields), lambda: thinking)
    return None if found is None else json.loads(found["structural_tag"])["format"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": ToolChoice("none")},
        {"tool_choice": REQUIRED, "tools": None},
        {"tool_choice": ToolChoice("auto"), "tools": [Tool("f")]},
        {"tool_choice": ToolChoice("auto"), "sampling": SamplingWishes(structured_outputs={"json": {}})},
    ],
)
def test_nothing_is_demanded(fields: dict[str, Any]) -> None:
    assert demanded(**fields) is None


@pytest.mark.parametrize("names", AS_PEER)
def test_required_calls_are_at_least_one(names: tuple[str, str | None]) -> None:
    """In the words of the reference peer, for the families of which its answers are recorded."""
    format = parsers.find_format(*names)
    assert format is not None
    found = demanded(format, tool_choice=REQUIRED)
    calls = found.get("content", found)
    assert (calls["at_least_one"], calls["stop_after_first"]) == (True, False)
    assert [tag["content"]["json_schema"] for tag in calls["tags"]] == [True] * (len(calls["tags"]) // 2) + [SCHEMA] * (
        len(calls["tags"]) // 2
    )
    serial = demanded(format, tool_choice=REQUIRED, parallel_tool_calls=False)
    assert serial.get("content", serial)["stop_after_first"] is True


def test_free_calls_have_a_trigger() -> None:
    found = demanded(tool_choice=ToolChoice("auto"))
    assert (found["type"], found["triggers"], found["at_least_one"]) == ("triggered_tags", ["<tool_call>"], False)


@pytest.mark.parametrize("name", ["llama3_json", "pythonic", "xlam", "gpt_oss"])
def test_free_calls_without_a_marker_are_not_shaped(name: str) -> None:
    assert demanded(name, tool_choice=ToolChoice("auto")) is None


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.calls])
def test_every_format_has_a_shape(name: str) -> None:
    assert demanded(name, tool_choice=REQUIRED)


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice("named", "f")])
def test_a_format_without_a_shape_says_so(choice: ToolChoice) -> None:
    shapeless = evolve(FORMATS["hermes"], name="hf", calls=evolve(FORMATS["hermes"].calls, shapes=()))
    with pytest.raises(BadRequest, match="output format 'hf' have no shape") as refusal:
        demanded(shapeless, tool_choice=choice)
    assert refusal.value.param == "tool_choice"
    assert demanded(shapeless, tool_choice=ToolChoice("auto")) is None


@pytest.mark.parametrize(
    ("name", "tool", "reason"),
    [
        ("pythonic", Tool("search-docs"), "the name 'search-docs' cannot be written"),
        ("hermes", Tool("two words"), "the name 'two words' cannot be written"),
        (
            "qwen3_coder",
            Tool("f", None, {"type": "object", "properties": {"a>b": {}}, "required": ["a>b"]}),
            "the parameter 'a>b' of 'f' cannot be written",
        ),
    ],
)
def test_a_tool_that_a_family_cannot_write_is_refused_by_name(name: str, tool: Tool, reason: str) -> None:
    choice = ToolChoice("named", tool.name)
    with pytest.raises(BadRequest, match=f"output format '{name}': {reason}"):
        demanded(name, tools=[tool], tool_choice=choice)
    assert demanded(name, tools=[tool, Tool("ok")], tool_choice=REQUIRED) == demanded(
        name, tools=[Tool("ok")], tool_choice=REQUIRED
    )


def test_the_vocabulary_chooses_between_shapes() -> None:
    with_token = parsers.bind(FORMATS["granite"], ["<|tool_call|>"])
    spelled = parsers.bind(FORMATS["granite"], [])
    assert "<|tool_call|>" in json.dumps(demanded(with_token, tool_choice=REQUIRED))
    assert "<|tool_call|>" not in json.dumps(demanded(spelled, tool_choice=REQUIRED))
    assert shape_of(spelled) == FORMATS["granite"].calls.shapes[1]  # type: ignore[union-attr]


def test_a_thought_may_come_first_where_the_engine_cannot_tell() -> None:
    free = demanded("olmo3", tool_choice=REQUIRED)
    opened = demanded("olmo3", thinking=True, tool_choice=REQUIRED)
    assert [option["type"] for option in free["elements"]] == ["or", "sequence"]
    assert opened["elements"][0] == {
        "type": "tag",
        "begin": "",
        "content": {"type": "any_text", "excludes": []},
        "end": "</think>",
    }


@pytest.mark.parametrize(("name", "closes"), [("deepseek_v31", True), ("kimi_k2", False)])
def test_an_open_thought_that_nobody_wants_to_hear_of_must_end(name: str, closes: bool) -> None:
    """Only where a call in a thought would be thought text."""
    asked = demanded(name, thinking=True, tool_choice=REQUIRED)
    silent = demanded(name, thinking=True, tool_choice=REQUIRED, include_reasoning=False)
    assert (
        (silent["elements"][0]["end"] == "</think>" and silent["elements"][-1] == asked) if closes else silent == asked
    )


HARD = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "(?=x)", "format": "odd"},
        "b": {"oneOf": [{"type": "integer", "multipleOf": 7}, {"not": {}}]},
        "c": {"$ref": "https://elsewhere/x"},
        "d": {"type": "nothing", "minLength": 9, "maxLength": 3},
        "e": {"$ref": "#/definitions/E"},
        "f": 5,
    },
    "required": ["a", 5],
    "definitions": {"E": {"type": ["string", "null"], "unevaluatedItems": False}},
    "if": {},
}


def test_a_schema_that_engines_cannot_follow_is_followed_as_far_as_they_can() -> None:
    (tag,) = demanded("granite4", tools=[Tool("f", None, HARD)], tool_choice=REQUIRED)["tags"]
    assert tag["content"]["json_schema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "integer"}, {}]},
            "c": {},
            "d": {},
            "e": {"$ref": "#/definitions/E"},
            "f": {},
        },
        "required": ["a"],
        "definitions": {"E": {"type": ["string", "null"]}},
    }
    (tag,) = demanded("granite4", tools=[Tool("f", None, HARD, strict=True)], tool_choice=REQUIRED)["tags"]
    assert tag["content"]["json_schema"] == HARD
