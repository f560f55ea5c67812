"""How a family's calls are demanded from an engine: the format as a structural tag, which engines turn into masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import frozen

from scaleout.core import ChatRequest, Json, Tool


@frozen
class CallShape:
    """The text around one call's arguments, and around all calls.

    `pairs`: what may stand before the name, between name and arguments, and behind these. `section`: what opens and closes the list
    of calls. `trigger`: the text that begins one where calls are free. `foreign`: texts that free text must not hold.
    """

    pairs: Sequence[tuple[str, str, str]]
    trigger: str
    separator: str = ""
    section: tuple[str, str] | None = None
    foreign: Sequence[str] = ()


_TAGGED = CallShape(
    pairs=(
        ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
        ('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>"),
    ),
    trigger="<tool_call>",
)
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

SHAPES: Mapping[str, CallShape] = {
    "hermes": _TAGGED,
    "qwen3": _TAGGED,
    "deepseek_v3": CallShape(
        pairs=(("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),),
        trigger=_DEEPSEEK_SECTION[0],
        separator="\n",
        section=_DEEPSEEK_SECTION,
        foreign=("<think>", "</think>"),
    ),
}
"""Families whose calls can be demanded, by the name of the format or of its half."""


def constrain_calls(format_name: str, request: ChatRequest) -> Mapping[str, Json] | None:
    """`structured_outputs` for the calls that a request demands; None where it demands none, or the family has no shape.

    Demanded are calls by `tool_choice` required or named. Free ones are shaped too when a tool is strict or only one may be called.
    Arguments follow the tool's schema where it is strict, else they are any JSON.
    """
    shape = SHAPES.get(format_name.rpartition("+")[2].partition("/")[0])
    choice = request.tool_choice
    if shape is None or choice is None or choice.mode == "none" or not request.tools:
        return None
    serial = not request.parallel_tool_calls
    if choice.mode == "auto":
        free = not serial and not any(tool.strict for tool in request.tools)
        if free or request.sampling.structured_outputs is not None:
            return None
        return _tag(_free(shape, request.tools, serial))
    named = choice.mode == "named"
    tools = [tool for tool in request.tools if not named or tool.name == choice.name]
    return _tag(_demanded(shape, tools, serial or named, named))


def _tag(format: Json) -> dict[str, Json]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": format})}


def _demanded(shape: CallShape, tools: Sequence[Tool], serial: bool, named: bool) -> Json:
    if shape.section is None:
        return _list(shape, tools, serial)
    begin, end = shape.section
    if named:
        (tag,) = _tags(shape, tools)
        return {"type": "tag", "begin": begin + tag["begin"], "content": tag["content"], "end": tag["end"] + end}
    return {"type": "tag", "begin": begin, "content": _list(shape, tools, serial), "end": end}


def _free(shape: CallShape, tools: Sequence[Tool], serial: bool) -> Json:
    tags = _tags(shape, tools)
    if shape.section is not None:
        begin, end = shape.section
        tags = [{"type": "tag", "begin": begin, "content": _list(shape, tools, serial), "end": end}]
    return {
        "type": "triggered_tags",
        "triggers": [shape.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": serial,
        "excludes": list(shape.foreign),
    }


def _list(shape: CallShape, tools: Sequence[Tool], serial: bool) -> Json:
    return {
        "type": "tags_with_separator",
        "tags": _tags(shape, tools),
        "separator": shape.separator,
        "at_least_one": True,
        "stop_after_first": serial,
    }


def _tags(shape: CallShape, tools: Sequence[Tool]) -> list[dict[str, Json]]:
    return [
        {
            "type": "tag",
            "begin": before + _in_json(tool.name) + behind,
            "content": {
                "type": "json_schema",
                "json_schema": tool.parameters if tool.strict and tool.parameters is not None else True,
                "style": "json",
                "any_order": False,
                "max_whitespace_cnt": None,
                "excludes": [],
            },
            "end": end,
        }
        for tool in tools
        for before, behind, end in shape.pairs
    ]


def _in_json(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]
