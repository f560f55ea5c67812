"""Runs a load with other random texts than its own: a prompt that a server has seen once is no new prompt any more.

usage: python -m bench.reseed ROUND LOAD.py [argument ...]          (round 0: the load's own texts)
"""

from __future__ import annotations

import random
import runpy
import sys


def run_reseeded(round_: int, arguments: list[str]) -> None:
    """Run a program whose `random.Random(seed)` depends on the round too."""

    class Reseeded(random.Random):
        def __init__(self, seed: int | float | str | bytes | bytearray | None = None) -> None:
            super().__init__(f"{seed!r} in round {round_}")

    if round_:
        random.Random = Reseeded  # type: ignore[misc, assignment]
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run_reseeded(int(sys.argv[1]), sys.argv[2:])
