"""When calls are demanded of an engine, and that what is demanded is what the family writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from scaleout import parsers
from scaleout.core import ChatRequest, Message, Piece, SamplingWishes, Tool, ToolArguments, ToolChoice, ToolStart
from scaleout.parsers.constraint import SHAPES, constrain_calls
from scaleout.render.spellings import longest_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
REQUEST = ChatRequest([Message("user", "q")], tools=[Tool("f", None, SCHEMA), Tool("g", None, SCHEMA, strict=True)])


def demanded(format_name: str = "hermes", **fields: Any) -> Any:
    found = constrain_calls(format_name, evolve(REQUEST, **fields))
    return None if found is None else json.loads(found["structural_tag"])["format"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": ToolChoice("none")},
        {"tool_choice": ToolChoice("required"), "tools": None},
        {"tool_choice": ToolChoice("auto"), "tools": [Tool("f")]},
        {"tool_choice": ToolChoice("auto"), "sampling": SamplingWishes(structured_outputs={"json": {}})},
    ],
)
def test_nothing_is_demanded(fields: dict[str, Any]) -> None:
    assert demanded(**fields) is None


def test_families_without_a_shape_get_no_constraint() -> None:
    assert demanded("pythonic", tool_choice=ToolChoice("required")) is None


@pytest.mark.parametrize("name", ["hermes", "think+hermes", "hermes/calls", "qwen3", "deepseek_v3"])
def test_required_calls_are_at_least_one(name: str) -> None:
    found = demanded(name, tool_choice=ToolChoice("required"))
    calls = found.get("content", found)
    assert (calls["at_least_one"], calls["stop_after_first"]) == (True, False)
    assert [tag["content"]["json_schema"] for tag in calls["tags"]] == [True] * (len(calls["tags"]) // 2) + [SCHEMA] * (
        len(calls["tags"]) // 2
    )
    serial = demanded(name, tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    assert serial.get("content", serial)["stop_after_first"] is True


def test_free_calls_have_a_trigger() -> None:
    found = demanded(tool_choice=ToolChoice("auto"))
    assert (found["type"], found["triggers"], found["at_least_one"]) == ("triggered_tags", ["<tool_call>"], False)


@pytest.mark.parametrize("name", SHAPES)
def test_the_family_reads_what_is_demanded(name: str) -> None:
    """Text that follows the shape is read back as that call by the family's own parser."""
    format = parsers.FORMATS[name]
    for before, behind, end in SHAPES[name].pairs:
        opened, closed = SHAPES[name].section or ("", "")
        text = f'{opened}{before}f{behind}{{"city": "Oslo"}}{end}{closed}'
        bound = parsers.bind(format, format.required)
        state = parsers.begin(bound, [], tools=[Tool("f", None, SCHEMA)], calls=True)
        state, events = parsers.feed(bound, state, _pieces(text, bound.tokens))
        events = [*events, *parsers.finish(bound, state)]
        assert [e.name for e in events if isinstance(e, ToolStart)] == ["f"]
        assert "".join(e.text for e in events if isinstance(e, ToolArguments)).strip() == '{"city": "Oslo"}'


def _pieces(text: str, tokens: tuple[str, ...]) -> list[Piece]:
    pieces: list[Piece] = []
    position = 0
    for match in longest_of(tokens).finditer(text):
        pieces += [Piece(text[position : match.start()]), Piece(match[0], marker=True)]
        position = match.end()
    return [*pieces, Piece(text[position:])]
