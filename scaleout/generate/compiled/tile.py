"""The innermost product: up to six rows by 64 columns of bfloat16 in a processor's registers, by its own instruction for it."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from scaleout.generate.compiled.numbers import loop

ROWS, COLUMNS = 6, 64
"""24 of the 32 vector registers hold sums, four a pair of rows of the weights, one a pair of a row's numbers."""

LANES = 16
PAIR_BYTES = COLUMNS * 4
"""Of two weights for each of the columns, side by side."""

# Neither has types of its own.
_binding: Any = binding
_ir: Any = ir
_int32, _int64, _byte = _ir.IntType(32), _ir.IntType(64), _ir.IntType(8)
_sums, _pairs = _ir.VectorType(_ir.FloatType(), LANES), _ir.VectorType(_int32, LANES)
_dot = _ir.FunctionType(_sums, [_sums, _pairs, _pairs]), "llvm.x86.avx512bf16.dpbf16ps.512"
_prefetch = _ir.FunctionType(_ir.VoidType(), [_byte.as_pointer(), _int32, _int32, _int32]), "llvm.prefetch.p0"


def can_tile() -> bool:
    """Where the instruction is, and no unit for whole matrices: that is faster, and oneDNN uses it."""
    if config.CPU_NAME or config.CPU_FEATURES:  # type: ignore[attr-defined]
        return False
    features = _binding.get_host_cpu_features()
    return bool(features.get("avx512bf16")) and not features.get("amx-bf16")


def _declare(builder: Any, function: tuple[Any, str]) -> Any:
    """LLVM's own function, once per module."""
    return builder.module.globals.get(function[1]) or _ir.Function(builder.module, *function)


@intrinsic
def _typed_tile(_: Any, rows: Any, given: Any, stride: Any, weights: Any, pairs: Any, ahead: Any, out: Any) -> Any:
    if not isinstance(rows, types.IntegerLiteral):
        raise RequireLiteralValue("rows")
    signature = types.void(rows, *[types.int64] * 6)
    return signature, lambda _, builder, __, values: _write_tile(builder, rows.literal_value, *values[1:])


def _write_tile(
    builder: Any, rows: int, given: Any, stride: Any, weights: Any, pairs: Any, ahead: Any, out: Any
) -> Any:
    """LLVM's code for it: a loop over pairs, whose sums stay in registers."""

    def at(base: Any, offset: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

    def number(value: int) -> Any:
        return _ir.Constant(_int64, value)

    dot = _declare(builder, _dot)
    vectors = COLUMNS // LANES
    places = [(row, vector) for row in range(rows) for vector in range(vectors)]
    lies = {(row, vector): number((row * vectors + vector) * LANES * 4) for row, vector in places}
    begun = {place: builder.load(at(out, lies[place], _sums), align=4) for place in places}
    starts = [builder.add(given, builder.mul(stride, number(row))) for row in range(rows)]
    before, body, behind = builder.block, builder.append_basic_block("pair"), builder.append_basic_block("told")
    builder.branch(body)
    builder.position_at_end(body)
    pair = builder.phi(_int64)
    pair.add_incoming(number(0), before)
    sums = {place: builder.phi(_sums) for place in places}
    for place in places:
        sums[place].add_incoming(begun[place], before)
    line = builder.add(weights, builder.mul(pair, number(PAIR_BYTES)))
    columns = [builder.load(at(line, number(LANES * 4 * vector), _pairs), align=4) for vector in range(vectors)]
    _write_fetch(builder, builder.add(ahead, builder.mul(pair, number(64))))
    nothing = _ir.Constant(_pairs, _ir.Undefined)
    next_sums = {}
    for row in range(rows):
        two = builder.load(at(starts[row], builder.mul(pair, number(4)), _int32), align=2)
        first = builder.insert_element(nothing, two, _ir.Constant(_int32, 0))
        everywhere = builder.shuffle_vector(first, nothing, _ir.Constant(_pairs, [0] * LANES))
        for vector in range(vectors):
            next_sums[row, vector] = builder.call(dot, [sums[row, vector], everywhere, columns[vector]])
    next_pair = builder.add(pair, number(1))
    pair.add_incoming(next_pair, body)
    for place in places:
        sums[place].add_incoming(next_sums[place], body)
    builder.cbranch(builder.icmp_signed("<", next_pair, pairs), body, behind)
    builder.position_at_end(behind)
    for place in places:
        builder.store(next_sums[place], at(out, lies[place], _sums), align=4)
    return _ir.Constant(_byte.as_pointer(), None)


@intrinsic
def _typed_turn(_: Any, given: Any, stride: Any, out: Any) -> Any:
    return types.void(*[types.int64] * 3), lambda _, builder, __, values: _write_turn(builder, *values)


def _write_turn(builder: Any, given: Any, stride: Any, out: Any) -> Any:
    """LLVM's code for it: four rounds, in each of which every row changes half of its numbers with another one."""
    rows = []
    for row in range(LANES):
        at = builder.add(given, builder.mul(stride, _ir.Constant(_int64, row)))
        rows.append(builder.load(builder.inttoptr(at, _pairs.as_pointer()), align=4))
    for far in (1, 2, 4, 8):
        for row in (row for row in range(LANES) if not row & far):
            upper, lower = rows[row], rows[row + far]
            kept = [lane + LANES - far if lane & far else lane for lane in range(LANES)]
            given_up = [lane + LANES if lane & far else lane + far for lane in range(LANES)]
            rows[row], rows[row + far] = (
                builder.shuffle_vector(upper, lower, _ir.Constant(_pairs, lanes)) for lanes in (kept, given_up)
            )
    for row, numbers in enumerate(rows):
        at = builder.add(out, _ir.Constant(_int64, row * PAIR_BYTES))
        builder.store(numbers, builder.inttoptr(at, _pairs.as_pointer()), align=4)
    return _ir.Constant(_byte.as_pointer(), None)


turn_square: Any = _typed_turn
"""(given, stride, out): 16 rows, a row each `stride` bytes, of 16 pairs → columns, each PAIR_BYTES behind the last one. Addresses."""


@intrinsic
def _typed_fetch(_: Any, address: Any) -> Any:
    return types.void(types.int64), lambda _, builder, __, values: _write_fetch(builder, *values)


def _write_fetch(builder: Any, address: Any) -> Any:
    line = builder.inttoptr(address, _byte.as_pointer())
    how = (_ir.Constant(_int32, number) for number in (0, 2, 1))  # to read, into the second cache, data
    builder.call(_declare(builder, _prefetch), [line, *how])
    return _ir.Constant(_byte.as_pointer(), None)


_fetch: Any = _typed_fetch


@loop
def fetch(address: Any, size: Any) -> None:
    """Has `size` bytes brought to the second cache by the time they are needed."""
    for offset in range(0, size, 64):
        _fetch(address + offset)


_tile: Any = _typed_tile


@loop
def add_tile(rows: Any, given: Any, stride: Any, weights: Any, pairs: Any, ahead: Any, out: Any) -> None:
    """Adds to `out`, float32 [rows, COLUMNS], the product of `given`, bfloat16 [rows, 2 * pairs], a row each `stride` bytes, and of
    `weights`, bfloat16 [pairs, COLUMNS, 2]. All are addresses. A quarter as many bytes as the weights are fetched from `ahead`.
    """
    if rows == 1:
        _tile(1, given, stride, weights, pairs, ahead, out)
    elif rows == 2:
        _tile(2, given, stride, weights, pairs, ahead, out)
    elif rows == 3:
        _tile(3, given, stride, weights, pairs, ahead, out)
    elif rows == 4:
        _tile(4, given, stride, weights, pairs, ahead, out)
    elif rows == 5:
        _tile(5, given, stride, weights, pairs, ahead, out)
    else:
        _tile(6, given, stride, weights, pairs, ahead, out)
