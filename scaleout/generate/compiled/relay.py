"""Loops behind each other on one team of threads, each begun when all threads have ended the one before: a step forks once per layer."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from scaleout.generate.compiled.numbers import BARRIER, carray, kernel

_ir: Any = ir
# What numba tells type checkers of the following is how it is made, or nothing.
wait_for_all: Any = types.ExternalFunction(BARRIER, types.void())


@intrinsic
def _typed_call(_: Any, address: Any, given: Any) -> Any:
    return types.void(types.int64, types.int64), lambda _, builder, __, values: _write_call(builder, *values)


def _write_call(builder: Any, address: Any, given: Any) -> Any:
    numbers = _ir.IntType(64).as_pointer()
    function = _ir.FunctionType(_ir.VoidType(), [numbers]).as_pointer()
    builder.call(builder.inttoptr(address, function), [builder.inttoptr(given, numbers)])
    return _ir.Constant(_ir.IntType(8).as_pointer(), None)


call: Any = _typed_call
"""(address, given): what `kernel` has compiled, with the numbers at the address `given`."""


def compile_relay() -> int:
    """Of how many numbers follow, and then of each loop: its address, how many numbers it is given, and these."""

    def relay(given: Any) -> None:
        end = carray(given, (1,))[0] + 1
        numbers = carray(given, (end,))
        place = 1
        while place < end:
            if place > 1:
                wait_for_all()
            call(numbers[place], numbers.ctypes.data + (place + 2) * 8)
            place += 2 + numbers[place + 1]

    return kernel(relay)
