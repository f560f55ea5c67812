"""Work and its driver take turns, whatever becomes of either."""

from __future__ import annotations

import threading

import pytest

from scaleout.generate.turns import Turns


def counting(log: list[str], fails: bool = False) -> Turns[int]:
    def work() -> int:
        for i in range(3):
            log.append(f"work {i}")
            turns.pause()
        if fails:
            raise KeyError("broken")
        return 7

    turns: Turns[int] = Turns(work)
    return turns


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "turns"]


def test_work_gets_on_only_while_its_driver_waits() -> None:
    log: list[str] = []
    turns = counting(log)
    ended = False
    while not ended:
        log.append("driver")
        ended = turns.advance()
    assert log == ["driver", "work 0", "driver", "work 1", "driver", "work 2", "driver"]
    assert turns.result() == 7
    assert not alive()


def test_what_work_raises_is_its_drivers() -> None:
    turns = counting([], fails=True)
    while not turns.advance():
        pass
    with pytest.raises(KeyError, match="broken"):
        turns.result()
    assert not alive()


@pytest.mark.parametrize("begun", [0, 1, 3, 4])
def test_dropped_work_ends(begun: int) -> None:
    log: list[str] = []
    turns = counting(log)
    for _ in range(begun):
        turns.advance()
    turns.drop()
    turns.drop()
    assert len(log) == min(begun, 3)
    assert not alive()
