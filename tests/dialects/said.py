"""Answers of all shapes: what derender can say about one choice, cut into deltas anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from scaleout.core import (
    AnswerHead,
    ChoiceDelta,
    Content,
    DecodedLogprob,
    DecodedPosition,
    Event,
    Reasoning,
    ToolArguments,
    ToolEnd,
    ToolStart,
    Usage,
)
from scaleout.dialects import Dialect, Request
from scaleout.dialects.dialect import Gather

Json = Any
USAGE = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
names = st.sampled_from(["get_weather", "add", "shell", "maps__find"])
"""`shell` is declared as a custom tool, `maps` as a namespace, by the requests of these tests."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3) | st.fixed_dictionaries({"input": texts})
good_arguments = st.builds(lambda value, ascii_: json.dumps(value, ensure_ascii=ascii_), objects, st.booleans())
bad_arguments = st.sampled_from(['{"a": ', '{"input": "x', "[1]", "nul", '{"a": 1,}', '{"input": 5}', "{'a': 1}"])


@st.composite
def calls(draw: st.DrawFn, index: int, damaged: bool) -> list[Event]:
    arguments = draw(good_arguments | bad_arguments if damaged else good_arguments)
    try:
        whole = isinstance(json.loads(arguments), dict)
    except ValueError:
        whole = False
    status = "ok" if whole else draw(st.sampled_from(["unclosed", "malformed"]))
    start = ToolStart(index, f"call_{index}", draw(names))
    return [start, *(ToolArguments(index, piece) for piece in draw(pieces(arguments))), ToolEnd(index, status)]


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """`text`, cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    ends = [*cuts, len(text)]
    return [text[a:b] for a, b in zip([0, *cuts], ends, strict=True)]


@st.composite
def answers(draw: st.DrawFn, *, damaged: bool = True, tools: bool = True) -> list[Event]:
    """Events of one answer: thoughts, texts and calls in any order. `damaged`: calls may be broken."""
    events: list[Event] = []
    count = 0
    for kind in draw(st.lists(st.sampled_from(["reasoning", "content", "call"]), max_size=5)):
        if kind == "call" and tools:
            events += draw(calls(count, damaged))
            count += 1
        elif kind == "reasoning":
            events += [Reasoning(text) for text in draw(st.lists(texts, min_size=1, max_size=3))]
        else:
            events += [Content(text) for text in draw(st.lists(texts, min_size=1, max_size=3))]
    return events


def _logprob(text: str) -> DecodedLogprob:
    return DecodedLogprob(len(text), text, -0.5, text.encode())


def _position(event: Event) -> DecodedPosition:
    region = "content" if isinstance(event, Content) else "reasoning" if isinstance(event, Reasoning) else "call"
    text = event.text if isinstance(event, (Content, Reasoning, ToolArguments)) else ""
    return DecodedPosition(_logprob(text), [_logprob(text), _logprob("x")], region=region)


@st.composite
def deltas(draw: st.DrawFn, events: Sequence[Event], *, logprobs: bool = False) -> list[ChoiceDelta]:
    """The events, handed out in deltas of any size; the last one finishes the choice."""
    finish = draw(st.sampled_from(["stop", "length", "abort"]))
    stop = None
    if finish == "stop" and any(isinstance(event, ToolStart) for event in events):
        finish = "tool_calls"
    elif finish == "stop":
        stop = draw(st.sampled_from([None, "END", 17]))
    cuts = sorted(draw(st.sets(st.integers(0, len(events)), max_size=8)))
    said = [
        ChoiceDelta(
            0,
            events[a:b],
            token_ids=range(a, b),
            logprobs=[_position(event) for event in events[a:b]] if logprobs else None,
        )
        for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)
    ]
    said[-1] = evolve(said[-1], finish_reason=finish, stop_reason=stop)
    return said


def stream(
    dialect: Dialect,
    head: AnswerHead,
    request: Request | None,
    given: Sequence[ChoiceDelta],
    gather: Gather | None = None,
) -> list[Json]:
    """All events of one choice and its usage. The carry goes through JSON between two deltas, as a client sends it back."""
    carry = dialect.open_stream(request)
    events: list[Json] = []
    for delta in (*given, None):
        carry, own = dialect.chunk(head, json.loads(json.dumps(carry)), delta, USAGE if delta is None else None)
        events += gather(own) if gather else own
    return events
