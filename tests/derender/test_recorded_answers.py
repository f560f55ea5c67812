"""Every recorded answer, from ids: whole, one id at a time, and in random pieces with the state sent through JSON."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from scaleout.core import ChoiceAnswer, TokenDelta
from scaleout.derender import Derenderer, fold
from scaleout.parsers import FORMATS
from tests.derender.recorded import Record, chat_request, expected, open_derenderer, plain, read_records

FAMILIES = {"hermes": ("hermes", None), "qwen3": ("hermes", "think")}
FAMILIES |= {name: (None, None) for name in FORMATS if name not in ("think", "hermes", "hf")}

HELD_WHOLE = ("pythonic", "llama4_pythonic", "lfm2", "olmo3")
"""Pythonic calls are held until they are whole, and the state holds them."""


def parsers_of(family: str, record: Record) -> tuple[str | None, str | None]:
    return record["tool_parser"], record["reasoning_parser"]


def derender(derenderer: Derenderer, record: Record, pieces: list[list[int]], through_json: bool) -> ChoiceAnswer:
    state = derenderer.begin(chat_request(record), record["prompt_token_ids"], "seed")
    deltas = []
    for i, ids in enumerate(pieces):
        finish = record["finish"] if i == len(pieces) - 1 else None
        deltas.append(derenderer.feed(state, TokenDelta(0, ids, finish_reason=finish)))
        if through_json:
            wire = orjson.dumps(derenderer.dump(state))
            assert len(wire) <= 1024 or record["family"] in HELD_WHOLE, f"{record['id']}: a state of {len(wire)} bytes"
            state = derenderer.load(orjson.loads(wire))
    return fold(deltas)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_recorded_answers(family: str, shared_folder: Path, family_tokenizer: Callable[[str], Path]) -> None:
    rnd = random.Random(family)
    wrong = []
    for record in read_records(shared_folder, family):
        derenderer = open_derenderer(family_tokenizer(family), *parsers_of(family, record))
        ids = record["token_ids"]
        cut = [0]
        while cut[-1] < len(ids):
            cut.append(min(len(ids), cut[-1] + rnd.randint(1, 7)))
        ways = {
            "whole": [ids],
            "one by one": [[one] for one in ids] or [[]],
            "pieces": [ids[a:b] for a, b in itertools.pairwise(cut)] or [[]],
        }
        for way, pieces in ways.items():
            answer = derender(derenderer, record, pieces, through_json=way != "whole")
            if plain(answer) != expected(record):
                wrong.append(f"{record['id']} {way}: {plain(answer)} instead of {expected(record)}")
    assert not wrong, "\n".join(wrong)
