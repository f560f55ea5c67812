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
from scaleout.parsers import FORMATS, Format, ParserState
from scaleout.parsers.state import HOLD_LIMIT
from tests.parsers.answers import check_stream, parse, through_json
from tests.parsers.strategies import TOOLS, answers, cuts, spellings
from tests.parsers.templates import TEMPLATES


def _variants() -> dict[str, Format]:
    """Every format with all its tokens, with none where it can do without, under the thoughts of another; and shipped templates."""
    found = dict(FORMATS)
    for name, format in FORMATS.items():
        if format.tokens and not format.required:
            found[f"{name}, spelled"] = parsers.bind(format, ())
        if format.thought is None:
            found[f"think+{name}"] = parsers.compose(FORMATS["think"], format)
    found |= {f"hf, {name}": parsers.read_response_template(template) for name, template in TEMPLATES.items()}
    return found


VARIANTS = _variants()
every_variant = pytest.mark.parametrize("name", VARIANTS)
every_format = pytest.mark.parametrize("name", FORMATS)

TAILS = ("", "<think>", "<think>\n\n</think>\n\n")


def _begin(format: Format, data: st.DataObject) -> ParserState:
    tail = data.draw(st.sampled_from(TAILS), label="prompt tail")
    pieces = [Piece(part, marker=part in format.tokens) for part in re.split(r"(</?think>)", tail) if part]
    return parsers.begin(format, pieces, tools=TOOLS, calls=data.draw(st.integers(0, 9), label="calls") > 0)


@every_variant
@given(data=st.data())
def test_one_answer_in_any_cut(name: str, data: st.DataObject) -> None:
    """Whole, one piece at a time, or cut anywhere with the state sent through JSON: the same answer, and nothing is taken back."""
    format = VARIANTS[name]
    state = _begin(format, data)
    pieces = data.draw(answers(format), label="answer")
    whole = parse(format, state, [pieces])
    assert parse(format, state, data.draw(cuts(pieces), label="cut"), as_json=True) == whole
    check_stream(format, state, pieces, whole)
    for call in whole.calls:
        assert call.status is not None
        assert call.name == call.name.strip() != ""
        if call.status == "ok":
            assert isinstance(json.loads(call.arguments), dict)


@every_format
@given(data=st.data())
def test_no_special_token_shows(name: str, data: st.DataObject) -> None:
    """Special tokens that mean nothing to the format, and its end tokens, leave no trace."""
    format = FORMATS[name]
    strangers = st.sampled_from([*(token for token in format.end_tokens), "<|never shown|>"])
    pieces = data.draw(answers(format), label="answer")
    mixed = [one for piece in pieces for one in (piece, Piece(data.draw(strangers), marker=True, special=True))]
    state = _begin(format, data)
    assert parse(format, state, [mixed]) == parse(format, state, [pieces])


def _damage(data: st.DataObject, value: Any) -> Any:
    """A JSON value with something in it replaced, removed or added."""
    odd = [1.5, "{{[", "(", "t", "'", [], {}, ["", 3, ""], ["", "x"], {"runs": [["\n", 1 << 60]]}]
    junk = st.one_of(st.none(), st.booleans(), st.integers(-3, 1 << 70), st.text(max_size=5), st.sampled_from(odd))
    if isinstance(value, dict) and value and data.draw(st.integers(0, 4)):
        key = data.draw(st.sampled_from(sorted(value)))
        rest = {k: v for k, v in value.items() if k != key}
        match data.draw(st.sampled_from(["change", "change", "remove", "add"])):
            case "remove":
                return rest
            case "add":
                return value | {data.draw(st.text("abefgijklmnoqrstvwyz", max_size=1)): data.draw(junk)}
        return rest | {key: _damage(data, value[key])}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        n = data.draw(st.integers(0, len(value) - 1))
        return [*value[:n], _damage(data, value[n]), *value[n + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and data.draw(st.booleans()):
        return value + data.draw(st.integers(-3, 3))
    if isinstance(value, str) and value and data.draw(st.booleans()):
        steps = [step for region in FORMATS["hermes"].tables[1].values() for step in getattr(region, "steps", ())]
        return data.draw(st.sampled_from([*steps, value[:-1], value + "{", value * 2]))
    return data.draw(junk)


@every_format
@given(data=st.data())
def test_damaged_state_is_refused_or_harmless(name: str, data: st.DataObject) -> None:
    format = FORMATS[name]
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


@every_format
def test_held_text_is_bounded(name: str) -> None:
    """A region that never becomes a call gives up at the limit, wherever the cuts are, and the state stays below it."""
    format = FORMATS[name]
    body = ' {"x": "' + "y" * (HOLD_LIMIT + 5000)
    parts = [Piece(body[n : n + 77777]) for n in range(0, len(body), 77777)]
    for opener in spellings(format):
        first = Piece(opener, marker=opener in format.tokens)
        state = parsers.begin(format, (), tools=TOOLS)
        whole = parse(format, state, [[first, Piece(body)]])
        assert parse(format, state, [[first], *[[part] for part in parts]], as_json=True) == whole
        for part in [first, *parts]:
            state, _ = parsers.feed(format, state, [part])
            assert len(json.dumps(parsers.dump_state(state))) < 3 * HOLD_LIMIT


@every_format
def test_long_whitespace_costs_little_state(name: str) -> None:
    format = FORMATS[name]
    state = parsers.begin(format, ())
    lines = [[Piece("\n" * 30000)]] * 20
    chunks = [[Piece("x")], *lines, [Piece("y")]]
    for chunk in lines:
        state, _ = parsers.feed(format, state, chunk)
        assert len(json.dumps(parsers.dump_state(state))) < 300
    whole = parse(format, parsers.begin(format, ()), [[piece for chunk in chunks for piece in chunk]])
    assert parse(format, parsers.begin(format, ()), chunks, as_json=True) == whole
    assert whole.content == "x" + "\n" * 600000 + "y"
