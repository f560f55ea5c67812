"""How compiled loops read and write memory: bfloat16 as its bits, in uint16, and float32 as it is. All arithmetic is in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import cfunc, njit, types
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic, overload

from scaleout.generate.compiled.kept import SOURCES

F = TypeVar("F", bound=Callable[..., Any])

THREAD_NUMBER, THREAD_COUNT, BARRIER = "omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier"
"""OpenMP's functions, under whose names compiled code finds them."""

FREEDOM = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be taken in any order, which vectors need; infinity and NaN stay what they are."""


def loop(function: F) -> F:
    """Compiled into whatever calls it, and nothing that Python could call. Arrays are contiguous."""
    how: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("F", njit(fastmath=FREEDOM, error_model="numpy", **how)(function))


def kernel(function: Callable[[Any], None]) -> int:
    """The address of a C function that takes a pointer to int64 numbers, for `Team.run`. Compiled once per machine, if it can be kept."""
    how: dict[str, Any] = {"error_model": "numpy", "fastmath": FREEDOM}
    signature = types.void(_types.CPointer(types.int64))
    function.__qualname__ += f".{SOURCES}"  # by which numba keeps it
    try:
        compiled = cfunc(signature, cache=True, **how)(function)
    except RuntimeError:  # no folder that can be written
        compiled = cfunc(signature, **how)(function)
    _kept.append(compiled)
    return int(compiled.address or 0)


_kept: list[Any] = []
"""Code that is never let go: what runs it knows its address only."""

_types: Any = types
# What numba tells type checkers of the following is how they are made, or nothing.
thread_number: Any = types.ExternalFunction(THREAD_NUMBER, types.int32())
thread_count: Any = types.ExternalFunction(THREAD_COUNT, types.int32())
carray: Any = vars(numba)["carray"]


@loop
def my_share(count: Any) -> Any:
    """From where to where, of `count` pieces of equal work."""
    share = -(-count // thread_count())
    start = thread_number() * share
    return start, min(start + share, count)


BITS, FLOATS, PLACES, PAIRS = 0, 1, 2, 3
"""What lies at an address: bfloat16 as uint16, float32, int64, two bfloat16 as uint32."""

_TYPES = {BITS: types.uint16, FLOATS: types.float32, PLACES: types.int64, PAIRS: types.uint32}


@intrinsic
def _pointer(_: Any, kind: Any, address: Any) -> Any:
    """For `carray`. `kind` is a constant of the compiled function, of which there is then one per kind."""
    if not isinstance(kind, types.IntegerLiteral):
        raise RequireLiteralValue("kind")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return _types.CPointer(_TYPES[kind.literal_value])(kind, types.int64), generate


pointer: Any = _pointer


def get(stored: Any) -> Any:
    """A stored number as float32."""
    raise NotImplementedError


def rounded(number: Any, like: Any) -> Any:
    """A float32 as the array `like` stores it: to the nearest, ties to even."""
    raise NotImplementedError


@overload(get)
def _get(stored: Any) -> Any:
    def from_bits(stored: Any) -> Any:
        return np.uint32(np.uint32(stored) << np.uint32(16)).view(np.float32)

    def as_it_is(stored: Any) -> Any:
        return stored

    return from_bits if stored == types.uint16 else as_it_is


@overload(rounded)
def _rounded(number: Any, like: Any) -> Any:
    def to_bits(number: Any, like: Any) -> Any:
        bits = np.float32(number).view(np.uint32)
        return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))

    def as_it_is(number: Any, like: Any) -> Any:
        return number

    return to_bits if like.dtype == types.uint16 else as_it_is


@loop
def in_order(bits: Any) -> Any:
    """The bits of a float32 as an int32 that is larger where the number is larger; and back, by the same function."""
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@loop
def highest(numbers: Any, least: Any) -> Any:
    """The largest, or `least`; NaN is above infinity. Compared as integers: because of NaN, LLVM would take floats one by one."""
    found = in_order(np.float32(least).view(np.int32))
    for place in range(len(numbers)):
        found = np.int32(max(found, in_order(np.float32(get(numbers[place])).view(np.int32))))
    return np.int32(in_order(found)).view(np.float32)


@loop
def exponential(x: Any) -> Any:
    """e^x to 2e-7 of its value, for x <= 0; some 1e-38 for all below -87. In vectors, which the C library's cannot."""
    power = max(x * np.float32(1.4426950408889634), np.float32(-126.0))
    whole = np.floor(power)
    rest = power - whole
    # 2^rest, the polynomial of least relative error over [0, 1].
    value = np.float32(0.0018762329127639532)
    value = value * rest + np.float32(0.00899258442223072)
    value = value * rest + np.float32(0.05582360550761223)
    value = value * rest + np.float32(0.24015453457832336)
    value = value * rest + np.float32(0.6931529641151428)
    value = value * rest + np.float32(0.9999999403953552)
    return value * np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
