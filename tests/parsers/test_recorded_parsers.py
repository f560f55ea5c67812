"""Every recorded answer of every family: whole, one token at a time, and in random chunks with the state sent through JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout import parsers
from scaleout.core import Piece
from scaleout.parsers import FORMATS
from tests.parsers.answers import check_stream, parse, tools_of
from tests.parsers.recorded import PARITY, families, format_of, pieces_of, prompt_of, records
from tests.parsers.strategies import cuts

pytestmark = pytest.mark.skipif(not PARITY.is_dir(), reason="the recorded answers of ../shared/parity are absent")


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments compare as JSON where they are JSON, else as text."""
    calls = []
    for call in message["tool_calls"]:
        try:
            arguments = json.loads(call["arguments"])
        except ValueError:
            arguments = call["arguments"]
        calls.append({**call, "arguments": arguments})
    return {"reasoning": message["reasoning"], "content": message["content"], "tool_calls": calls}


@pytest.mark.parametrize("family", families())
def test_recorded_answers(family: str) -> None:
    format = format_of(family)
    wrong = []
    for record in records(family):
        expected = comparable(record["expected"])
        pieces = pieces_of(record)
        state = parsers.begin(format, prompt_of(record), tools=tools_of(record), calls=True)
        seeded = random.Random(record["id"])
        places = sorted(seeded.choices(range(len(pieces) + 1), k=4))
        chunks = [pieces[a:b] for a, b in zip([0, *places], [*places, len(pieces)], strict=True)]
        answers = {
            "whole": parse(format, state, [pieces]),
            "one token at a time": parse(format, state, [[piece] for piece in pieces], as_json=True),
            "in chunks": parse(format, state, chunks, as_json=True),
        }
        wrong += [
            f"{record['id']} {way}: {answer.message()} instead of {expected}"
            for way, answer in answers.items()
            if comparable(answer.message()) != expected
        ]
    assert not wrong, "\n".join(wrong)


def _spoil(data: st.DataObject, pieces: list[Piece]) -> list[Piece]:
    """A recorded answer with pieces lost, doubled, exchanged, cut short or spelled out."""
    pieces = list(pieces)
    for _ in range(data.draw(st.integers(0, 4), label="damages")):
        if not pieces:
            break
        n, m = data.draw(st.tuples(*[st.integers(0, len(pieces) - 1)] * 2), label="where")
        match data.draw(st.sampled_from(["lose", "double", "exchange", "cut", "spell", "end"]), label="how"):
            case "lose":
                del pieces[min(n, m) : min(n, m) + 1 + abs(n - m) % 3]
            case "double":
                pieces[n:n] = pieces[m : m + 3]
            case "exchange":
                pieces[n], pieces[m] = pieces[m], pieces[n]
            case "cut":
                pieces[n] = Piece(pieces[n].text[:-1] or "x")
            case "spell":
                pieces[n] = Piece(pieces[n].text)
            case "end":
                del pieces[n:]
    return pieces


@pytest.mark.parametrize("family", families())
@given(data=st.data())
def test_laws_hold_on_spoiled_answers(family: str, data: st.DataObject) -> None:
    format = format_of(family)
    record = data.draw(
        st.sampled_from(records(family)).filter(lambda record: len(record["text"]) < 1000), label="record"
    )
    pieces = _spoil(data, pieces_of(record))
    state = parsers.begin(format, prompt_of(record), tools=tools_of(record), calls=True)
    whole = parse(format, state, [pieces])
    assert parse(format, state, data.draw(cuts(pieces), label="cut"), as_json=True) == whole
    check_stream(format, state, pieces, whole)


@pytest.mark.parametrize("family", families())
def test_state_stays_small_on_real_answers(family: str) -> None:
    """Apart from text that must be held, a state is a few hundred bytes."""
    format = format_of(family)
    for record in records(family):
        state = parsers.begin(format, prompt_of(record), tools=tools_of(record))
        types = len(json.dumps(state.types))
        for piece in pieces_of(record):
            state, _ = parsers.feed(format, state, [piece])
            held = sum(len(json.dumps(part)) for part in (*state.raw, *(state.call.value if state.call else ())))
            assert len(json.dumps(parsers.dump_state(state))) - held - types < 400, record["id"]


def test_every_family_has_a_format_of_its_own_name() -> None:
    assert set(families()) <= set(FORMATS)
