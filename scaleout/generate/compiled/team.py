"""Runs a compiled loop on the threads that torch itself uses: a second pool's would wait actively for cores that these hold."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from llvmlite import binding

from scaleout.generate.compiled.numbers import THREAD_COUNT, THREAD_NUMBER

_binding: Any = binding


@frozen(eq=False)
class Team:
    """torch's own OpenMP: `GOMP_parallel(function, data, threads, flags)`, the call that compilers make for a parallel section."""

    fork: ctypes._FuncPointer  # type: ignore[name-defined, misc, unused-ignore]

    def run(self, threads: int, address: int, *numbers: int) -> None:
        """The loop at `address` on the calling thread and others of its team, each with the same `numbers`."""
        self.fork(address, (ctypes.c_int64 * len(numbers))(*numbers), threads, 0)


def find_team() -> Team:
    """Raises OSError or AttributeError where torch was built without OpenMP, or with one that keeps no such call."""
    # Looking in torch's library finds what it is linked to, whatever that is called and wherever it lies.
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for name in (THREAD_NUMBER, THREAD_COUNT):
        _binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    fork = library.GOMP_parallel
    fork.restype = None
    fork.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    return Team(fork)
