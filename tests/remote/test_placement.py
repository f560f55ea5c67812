"""Prompts go where their beginnings are, as long as that is fair."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.generate.remote.board import Board, Seat
from scaleout.generate.remote.placement import BLOCK, SPARE, Placement, chain

NAMES = [f"10.0.0.{i}:8000" for i in range(4)]
ALL = list(range(len(NAMES)))


def placement(loads: dict[int, int] | None = None) -> Placement:
    known = loads if loads is not None else {}
    return Placement(NAMES, lambda engine: known.get(engine, 0))


def prompt(seed: int, blocks: int) -> list[int]:
    return [(seed * 7919 + i * 31) % 50_000 for i in range(blocks * BLOCK)]


def test_a_conversation_stays_where_it_began() -> None:
    here = placement()
    turns = [prompt(1, 2) + prompt(2, length) for length in range(12)]
    assert len({here.order(turn, None, ALL)[0] for turn in turns}) == 1


def test_conversations_are_spread_and_other_processes_agree_on_where() -> None:
    homes = [placement().order(prompt(seed, 3), None, ALL)[0] for seed in range(400)]
    assert homes == [placement().order(prompt(seed, 3), None, ALL)[0] for seed in range(400)]
    assert min(Counter(homes).values()) > 60


def test_only_the_prompts_of_an_engine_that_leaves_move() -> None:
    before = [placement().order(prompt(seed, 3), None, ALL)[0] for seed in range(200)]
    after = [placement().order(prompt(seed, 3), None, ALL[:3])[0] for seed in range(200)]
    assert all(b == a for b, a in zip(before, after, strict=True) if b != 3)


def test_a_busy_engine_s_prompts_go_to_the_idlest() -> None:
    loads: dict[int, int] = {}
    here = placement(loads)
    home = here.order(prompt(1, 4), None, ALL)[0]
    loads[home] = SPARE
    assert here.order(prompt(1, 4), None, ALL)[0] == home
    loads |= dict.fromkeys(ALL, 2) | {home: 40, (home + 1) % 4: 0}
    assert here.order(prompt(1, 4), None, ALL)[0] == (home + 1) % 4


def test_short_prompts_go_to_the_idlest() -> None:
    assert placement({0: 2, 1: 1, 2: 0, 3: 5}).order([1, 2, 3], None, ALL) == [2, 1, 0, 3]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=400), st.lists(st.integers(0, 2**32 - 1), max_size=200))
def test_prompts_share_the_blocks_of_their_common_beginning(ids: list[int], more: list[int]) -> None:
    short, long = chain(ids, None), chain(ids + more, None)
    assert long[: len(short)] == short
    assert not ids[BLOCK - 1 :] or chain(ids, "salt")[0] != short[0]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleout.generate.remote.placement.MOST_KNOWN", 50)
    here = placement()
    for seed in range(100):
        here.order(prompt(seed, 3), None, ALL)
    assert len(here._seen) == 50


def test_processes_see_each_other_s_loads() -> None:
    board = Board(2, 3)
    seats = [Seat(board, process) for process in range(3)]
    seats[0].add(1, 4)
    seats[2].add(1, 2)
    assert (board.load(0), board.load(1)) == (0, 6)
    assert seats[1].own_load(1) == 0
    Seat(board, 0)  # the process died and another took its place
    assert board.load(1) == 2
    board.drain(1, True)
    assert (board.is_drained(0), board.is_drained(1)) == (False, True)
