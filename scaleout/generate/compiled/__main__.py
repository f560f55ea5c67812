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

from scaleout.generate.compiled.look_back import compile_look_back
from scaleout.generate.compiled.look_back_tiles import compile_look_back_tiles
from scaleout.generate.compiled.multiply import compile_multiply
from scaleout.generate.compiled.norm import compile_normalise
from scaleout.generate.compiled.numbers import BARRIER, BITS, FLOATS, THREAD_COUNT, THREAD_NUMBER
from scaleout.generate.compiled.read_prompt import compile_lay_out, compile_read_prompt
from scaleout.generate.compiled.relay import compile_relay
from scaleout.generate.compiled.tile import can_tile
from scaleout.generate.compiled.turn import compile_turn
from scaleout.generate.compiled.weigh import compile_hand_out, compile_weigh

KINDS = {"bfloat16": BITS, "float32": FLOATS}

_binding: Any = binding


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


def main(kind: str, processes: int) -> int:
    pretend_threads()
    first, *rest = loops_for(KINDS[kind])
    first()
    # Only now, because all that numba makes ready for its first function is then there in both.
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
