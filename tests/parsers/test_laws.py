"""The laws that hold for every format, on answers of every kind. A new format is tested here without a line of test code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout import parsers
from scaleout.core import Content, Piece, Reasoning, ToolArguments, ToolEnd, ToolStart
from scaleout.errors import BadState
from scaleout.parsers import FORMATS, Format
from scaleout.parsers.state import HOLD_LIMIT
from tests.parsers.answers import Answer, parse, through_json
from tests.parsers.strategies import TOOLS, answers, cuts, spellings


def _variants() -> dict[str, Format]:
    """Every format with all its tokens, with none where it can do without, and thoughts of one with calls of another."""
    found: dict[str, Format] = {}
    for name, format in FORMATS.items():
        found[name] = format
        if not format.required:
            found[f"{name}, as text"] = parsers.bind(format, ())
        if format.thought is None:
            found[f"think+{name}"] = parsers.compose(FORMATS["think"], format)
    return found


VARIANTS = _variants()
each_format = pytest.mark.parametrize("format", VARIANTS.values(), ids=VARIANTS.keys())

TAILS = ("", "<think>", "<think>\n\n</think>\n\n")


def _begin(format: Format, data: st.DataObject) -> parsers.ParserState:
    tail = data.draw(st.sampled_from(TAILS), label="prompt tail")
    pieces = [Piece(part, marker=part in format.tokens) for part in re.split(r"(</?think>)", tail) if part]
    return parsers.begin(format, pieces, tools=TOOLS, calls=data.draw(st.integers(0, 9), label="calls") > 0)


@each_format
@given(data=st.data())
def test_any_cut_gives_one_answer(format: Format, data: st.DataObject) -> None:
    state = _begin(format, data)
    pieces = data.draw(answers(format), label="answer")
    whole = parse(format, state, [pieces])
    assert parse(format, state, data.draw(cuts(pieces), label="cut"), as_json=True) == whole
    assert parse(format, state, [[piece] for piece in pieces]) == whole


@each_format
@given(data=st.data())
def test_nothing_is_taken_back(format: Format, data: st.DataObject) -> None:
    state = _begin(format, data)
    pieces = data.draw(answers(format), label="answer")
    whole = parse(format, state, [pieces])
    so_far = Answer()
    for piece in pieces:
        state, events = parsers.feed(format, state, [piece])
        so_far.add(events)
        assert (whole.reasoning or "").startswith(so_far.reasoning or "")
        assert (whole.content or "").startswith(so_far.content or "")
        for now, then in zip(so_far.calls, whole.calls, strict=False):
            assert (now.name, now.id) == (then.name, then.id)
            assert then.arguments.startswith(now.arguments)
            assert now.status in (None, then.status)
    assert len(so_far.calls) <= len(whole.calls)


@each_format
@given(data=st.data())
def test_state_is_small_and_survives_json(format: Format, data: st.DataObject) -> None:
    state = _begin(format, data)
    longest = max(map(len, spellings(format)), default=1)
    for piece in data.draw(answers(format), label="answer"):
        before = parsers.dump_state(state)
        after, _ = parsers.feed(format, state, [piece])
        assert parsers.dump_state(state) == before, "feeding changed the state it was given"
        state = after
        assert through_json(format, state) == state
        held = state.held.strip()
        assert state.call is not None or len(held) < longest


@each_format
@given(data=st.data())
def test_statuses_are_true(format: Format, data: st.DataObject) -> None:
    """A call that ended ok has an object as arguments; every call has an end."""
    answer = parse(format, _begin(format, data), [data.draw(answers(format), label="answer")])
    for call in answer.calls:
        assert call.status is not None
        assert call.name == call.name.strip() != ""
        if call.status == "ok":
            assert isinstance(json.loads(call.arguments), dict)


@each_format
@given(data=st.data())
def test_no_token_of_the_turn_shows(format: Format, data: st.DataObject) -> None:
    pieces = [piece for piece in data.draw(answers(format), label="answer") if piece.marker or "<|" not in piece.text]
    stranger = Piece("<|never shown|>", marker=True, special=True)
    mixed = [one for piece in pieces for one in (piece, stranger)]
    state = _begin(format, data)
    assert parse(format, state, [mixed]) == parse(format, state, [pieces])


def _damage(data: st.DataObject, value: Any) -> Any:
    """A JSON value with something in it replaced, removed or added."""
    junk = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 1 << 70),
        st.text(max_size=5),
        st.sampled_from([1.5, "{{[", [], {}, ["", 3, ""], ["", "x"]]),
    )
    if isinstance(value, dict) and value and data.draw(st.integers(0, 4)):
        key = data.draw(st.sampled_from(sorted(value)))
        action = data.draw(st.sampled_from(["change", "change", "remove", "add"]))
        rest = {k: v for k, v in value.items() if k != key}
        if action == "remove":
            return rest
        if action == "add":
            return value | {data.draw(st.text(max_size=2)): data.draw(junk)}
        return rest | {key: _damage(data, value[key])}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        n = data.draw(st.integers(0, len(value) - 1))
        return [*value[:n], _damage(data, value[n]), *value[n + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and data.draw(st.booleans()):
        return value + data.draw(st.integers(-3, 3))
    return data.draw(junk)


@each_format
@given(data=st.data())
def test_damaged_state_is_refused_or_harmless(format: Format, data: st.DataObject) -> None:
    state = _begin(format, data)
    pieces = data.draw(answers(format), label="answer")
    place = data.draw(st.integers(0, len(pieces)))
    state, _ = parsers.feed(format, state, pieces[:place])
    wire = json.loads(json.dumps(parsers.dump_state(state)))
    for _ in range(data.draw(st.integers(1, 3))):
        wire = _damage(data, wire)
    try:
        state = parsers.load_state(format, wire)
    except BadState:
        return
    state, events = parsers.feed(format, state, pieces[place:])
    for event in events + parsers.finish(format, through_json(format, state)):
        assert isinstance(event, Content | Reasoning | ToolStart | ToolArguments | ToolEnd)


@each_format
def test_held_text_is_bounded(format: Format) -> None:
    """A region that never becomes a call gives up at the limit, wherever the cuts are."""
    for opener in spellings(format):
        pieces = [Piece(opener, marker=opener in format.tokens), Piece(' {"x": "' + "y" * (HOLD_LIMIT + 5000))]
        state = parsers.begin(format, (), tools=TOOLS)
        whole = parse(format, state, [pieces])
        parts = [Piece(pieces[1].text[n : n + 7777]) for n in range(0, len(pieces[1].text), 7777)]
        assert parse(format, state, [[pieces[0]], *[[part] for part in parts]], as_json=True) == whole
        for part in [pieces[0], *parts]:
            state, _ = parsers.feed(format, state, [part])
            assert len(json.dumps(parsers.dump_state(state))) < 2 * HOLD_LIMIT


@each_format
def test_long_whitespace_costs_little_state(format: Format) -> None:
    state = parsers.begin(format, ())
    for _ in range(40):
        state, _ = parsers.feed(format, state, [Piece("\n" * 3000)])
    assert len(json.dumps(parsers.dump_state(state))) < 300
    runs = [[Piece("x")], *[[Piece("\n" * 3000)]] * 40, [Piece("y")]]
    whole = parse(format, parsers.begin(format, ()), [[piece for chunk in runs for piece in chunk]])
    assert parse(format, parsers.begin(format, ()), runs, as_json=True) == whole
    assert whole.content == "x" + "\n" * 120000 + "y"
