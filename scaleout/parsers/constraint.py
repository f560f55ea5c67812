"""How a family's calls are demanded from an engine: the format as a structural tag, which engines turn into masks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaleout.core import ChatRequest, Json, Tool
from scaleout.errors import BadRequest
from scaleout.parsers.format import Format
from scaleout.parsers.shapes.call import CallShape, Unwritable
from scaleout.parsers.shapes.forms import Form, either, free, maybe, pattern, sequence, tag


def constrain_calls(
    format: Format, request: ChatRequest, is_thinking: Callable[[], bool] = lambda: False
) -> Mapping[str, Json] | None:
    """`structured_outputs` for the calls that a request demands; None where it demands none.

    Demanded are calls by `tool_choice` required or named: then the answer is calls and nothing else, but for a thought before them.
    Free ones are shaped too when a tool is strict or only one may be called, where the family marks where calls begin.
    `is_thinking`: whether the prompt leaves a thought open. Raises BadRequest where the family's calls cannot be demanded.
    """
    choice = request.tool_choice
    if choice is None or choice.mode == "none" or not request.tools:
        return None
    shape = shape_of(format)
    serial = not request.parallel_tool_calls
    if choice.mode == "auto":
        free_anyway = not serial and not any(tool.strict for tool in request.tools)
        if free_anyway or shape is None or not shape.trigger or request.sampling.structured_outputs is not None:
            return None
        tags, _ = _tags(shape, request.tools)
        return _structural_tag(_freely(shape, tags, serial)) if tags else None
    if shape is None:
        raise BadRequest(
            f"tool_choice {choice.mode!r} cannot be kept: the calls of the output format {format.name!r} have no shape "
            "that an engine could be held to. Use 'auto'.",
            "tool_choice",
        )
    named = choice.mode == "named"
    tools = [tool for tool in request.tools if not named or tool.name == choice.name]
    tags, reasons = _tags(shape, tools)
    if not tags:
        raise BadRequest(
            f"tool_choice {choice.mode!r} cannot be kept in the output format {format.name!r}: {'; '.join(reasons)}.",
            "tool_choice",
        )
    calls = _demanded(shape, tags, serial or named, named)
    return _structural_tag(_after_thought(format, shape, request, calls, is_thinking))


def shape_of(format: Format) -> CallShape | None:
    """How calls are demanded in this format, for the vocabulary that it is bound to; None where they cannot be."""
    shapes = format.calls.shapes if format.calls else ()
    return next((shape for shape in shapes if set(shape.tokens) <= set(format.tokens)), None)


def _structural_tag(form: Form) -> dict[str, Json]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}


def _tags(shape: CallShape, tools: Sequence[Tool]) -> tuple[list[Form], list[str]]:
    """The calls of all tools that the family can write, and why it cannot write the others."""
    tags: list[Form] = []
    reasons = []
    for tool in tools:
        try:
            tags += shape.tags(tool)
        except Unwritable as reason:
            reasons.append(str(reason))
    return tags, reasons


def _demanded(shape: CallShape, tags: Sequence[Form], serial: bool, named: bool) -> Form:
    calls = _list(shape, tags, serial)
    if not shape.sections:
        return calls
    if named and len(tags) == len(shape.sections) == 1:
        (begin, end), (one,) = shape.sections[0], tags
        whole: Any = {**one, "begin": begin + str(one["begin"]), "end": str(one["end"]) + end}
        return whole  # type: ignore[no-any-return]
    return either([tag(begin, calls, end) for begin, end in shape.sections])


def _freely(shape: CallShape, tags: Sequence[Form], serial: bool) -> Form:
    if shape.sections:
        begin, end = shape.sections[0]
        tags = [tag(begin, _list(shape, tags, serial), end)]
    return {
        "type": "triggered_tags",
        "triggers": [shape.trigger],
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": serial,
        "excludes": list(shape.foreign),
    }


def _list(shape: CallShape, tags: Sequence[Form], serial: bool) -> Form:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": shape.separator,
        "at_least_one": True,
        "stop_after_first": serial,
    }


def _after_thought(
    format: Format, shape: CallShape, request: ChatRequest, calls: Form, is_thinking: Callable[[], bool]
) -> Form:
    """A thought may come first where the engine cannot tell it by its tokens, and one that the prompt opened must end before the calls.

    Elsewhere the engine's masks sleep until a thought is over. They never sleep for a request that wants to hear of no thoughts: then an
    open one must end here too, unless a call ends it.
    """
    thought = format.thought
    layout = maybe(pattern("[ \\n]{1,4}"))
    if shape.thought is None:
        awake = thought is not None and not thought.ends_at_call and not request.include_reasoning
        return sequence([free("", thought.close[0]), layout, calls]) if awake and thought and is_thinking() else calls
    begin, end = shape.thought
    if is_thinking():
        return sequence([free("", end), layout, calls])
    return either([calls, sequence([free(begin, end), layout, calls])])
