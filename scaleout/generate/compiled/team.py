"""Runs a compiled loop on the threads that torch itself uses: a second pool's would wait actively for cores that these hold."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from attrs import define, field
from llvmlite import binding
from torch import Tensor

from scaleout.generate.compiled.numbers import BARRIER, THREAD_COUNT, THREAD_NUMBER
from scaleout.generate.compiled.relay import compile_relay
from scaleout.generate.openmp import find_openmp

_binding: Any = binding


@define(eq=False)
class Team:
    """torch's own OpenMP. `fork`: see `find_openmp`.

    `relay`: the address of what runs loops behind each other.
    """

    fork: ctypes._FuncPointer  # type: ignore[name-defined, misc, unused-ignore]
    relay: int
    _waiting: list[int] | None = None
    _held: list[Tensor] = field(factory=list)

    def run(self, threads: int, address: int, *numbers: int) -> None:
        """The loop at `address` on the calling thread and others of its team, each with the same `numbers`."""
        if self._waiting is None:
            self.fork(address, (ctypes.c_int64 * len(numbers))(*numbers), threads, 0)
        else:
            self._waiting += (address, len(numbers), *numbers)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Loops that are run within wait for `flush`, or for the end. The caller keeps the tensors that they read and write until then."""
        self._waiting = []
        try:
            yield
            self.flush()
        finally:
            self._waiting = None
            self._held.clear()

    def flush(self) -> None:
        """Runs what waits, all of it by all threads."""
        if self._waiting:
            numbers, self._waiting = self._waiting, []
            count = len(numbers)
            self.fork(self.relay, (ctypes.c_int64 * (1 + count))(count, *numbers), torch.get_num_threads(), 0)

    def hold(self, tensor: Tensor) -> None:
        """Until what waits has been run, if anything does."""
        if self._waiting is not None:
            self._held.append(tensor)


@cache
def _relay_address() -> int:
    return compile_relay()


def find_team() -> Team:
    """Raises OSError or AttributeError: see `find_openmp`."""
    library = find_openmp()
    for name in (THREAD_NUMBER, THREAD_COUNT, BARRIER):
        _binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return Team(library.GOMP_parallel, _relay_address())
