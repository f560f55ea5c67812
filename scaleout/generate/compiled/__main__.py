"""`python -m scaleout.generate.compiled KIND PROCESSES`: compiles the loops for a kind of number, in one process or two, so that numba
keeps them. Prints nothing, needs no torch, and ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any

from llvmlite import binding
from numba import types as numba_types

from scaleout.generate.compiled.look_back import compile_look_back
from scaleout.generate.compiled.look_back_tiles import compile_look_back_tiles
from scaleout.generate.compiled.multiply import compile_multiply
from scaleout.generate.compiled.norm import compile_normalise
from scaleout.generate.compiled.numbers import BARRIER, BITS, FLOATS, THREAD_COUNT, THREAD_NUMBER
from scaleout.generate.compiled.read_prompt import (
    compile_lay_out,
    compile_read_prompt,
    hand_out_part,
    lay_out_keys,
    lay_out_values,
    weigh_row,
)
from scaleout.generate.compiled.relay import compile_relay
from scaleout.generate.compiled.tile import add_tile, can_tile
from scaleout.generate.compiled.turn import compile_turn
from scaleout.generate.compiled.weigh import compile_hand_out, compile_weigh

KINDS = {"bfloat16": BITS, "float32": FLOATS}

# What numba and llvmlite tell type checkers of these is nothing, or wrong.
_binding: Any = binding
types: Any = numba_types
SHARED: Any = (add_tile, lay_out_keys, lay_out_values, weigh_row, hand_out_part)


def loops_for(kind: int) -> Sequence[Callable[[], object]]:
    """All that `open_loops` asks for. The first one aside, two processes that take turns in choosing have about the same to do."""
    turn, normalise = partial(compile_turn, kind), partial(compile_normalise, kind)
    if kind == BITS and can_tile():
        return [
            turn,
            compile_look_back_tiles,
            compile_read_prompt,
            compile_lay_out,
            compile_multiply,
            normalise,
            compile_relay,
        ]
    look_back, weigh = partial(compile_look_back, kind), partial(compile_weigh, kind)
    return [turn, look_back, weigh, normalise, partial(compile_hand_out, kind), compile_relay]


def compile_shared_parts() -> None:
    """What several of the loops by tiles are made of. With types as they have it: others would only be compiled in vain."""
    number, real = types.int64, types.float32
    table, halves, pairs = (types.Array(kind, 1, "C") for kind in (number, types.uint16, types.uint32))
    numbers, panel, scores = types.Array(real, 1, "C"), pairs.copy(ndim=2), types.Array(real, 3, "C")
    given: Sequence[Sequence[object]] = (
        [number] * 7,
        [panel, table, number, number, number, panel],
        [panel, table, number, number, number, number, number, panel],
        [scores, number, number, number, real, real, halves],
        [numbers, real, halves],
    )
    for part, kinds in zip(SHARED, given, strict=True):
        part.compile(tuple(kinds))


def main(kind: str, processes: int) -> int:
    pretend_threads()
    first, *rest = loops_for(KINDS[kind])
    first()
    if compile_multiply in rest:
        compile_shared_parts()
    # Only now, because all that numba made ready until here is then there in both.
    forked = os.fork() if processes > 1 else None
    Thread(target=end_with_parent, daemon=True).start()
    for compile_one in rest if forked is None else rest[::2] if forked else rest[1::2]:
        compile_one()
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) if forked else 0


def pretend_threads() -> None:
    """Compiled code is linked before it is kept, though nobody calls it here. Where it is loaded, it is linked anew, by name."""
    for name in (THREAD_NUMBER, THREAD_COUNT, BARRIER):
        _binding.add_symbol(name, ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value)


def end_with_parent() -> None:
    while os.read(0, 1):  # not through `sys.stdin`, whose lock the interpreter wants when it ends
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
