"""What the processes of one server tell each other about its engines: which are drained, and how many requests each has in hand."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from attrs import define, field


@define(eq=False)
class Board:
    """Shared memory, made before the processes are forked. Each writes its own counts, anybody drains an engine."""

    engines: int
    processes: int = 1
    _cells: memoryview = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 4 * self.engines * (1 + self.processes))).cast("I")

    def is_drained(self, engine: int) -> bool:
        return bool(self._cells[engine])

    def drain(self, engine: int, drained: bool) -> None:
        self._cells[engine] = drained

    def load(self, engine: int) -> int:
        """Choices that run there, of all processes."""
        return sum(self._cells[cell] for cell in self._counts_of(engine))

    def _counts_of(self, engine: int) -> Iterable[int]:
        return range(self.engines + engine, self.engines * (1 + self.processes), self.engines)


@define(eq=False)
class Seat:
    """One process's place at the board."""

    board: Board
    process: int = 0

    def __attrs_post_init__(self) -> None:
        # The counts of a process that died in this place died with it.
        for engine in range(self.board.engines):
            self.board._cells[self._cell(engine)] = 0

    def add(self, engine: int, choices: int) -> None:
        self.board._cells[self._cell(engine)] += choices

    def own_load(self, engine: int) -> int:
        return self.board._cells[self._cell(engine)]

    def _cell(self, engine: int) -> int:
        return self.board.engines * (1 + self.process) + engine
