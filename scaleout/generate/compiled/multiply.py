"""Products of rows with weights as oneDNN packs them: each weight is read from memory once, and what is done with the sums on the way
out needs no pass of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import (
    BITS,
    FLOATS,
    carray,
    exponential,
    get,
    kernel,
    loop,
    my_share,
    pointer,
    rounded,
    thread_number,
)
from scaleout.generate.compiled.tile import COLUMNS, PAIR_BYTES, ROWS, add_tile

BLOCKS_AT_ONCE = 16
"""Of rows: as many as have their sums in a core's first two caches."""

GROUP = BLOCKS_AT_ONCE * ROWS
SCRATCH = 2 * GROUP * COLUMNS
"""Floats per thread."""

PAIRS_AT_ONCE = 512
"""128 KB of weights, which stay in a core's second cache while all rows pass over them."""

SWISH, GELU, GELU_TANH, RELU = 1, 2, 3, 4


@loop
def activate(sums: Any, activation: Any) -> None:
    """[count], in place."""
    if activation == SWISH:
        for place in range(len(sums)):
            small = exponential(-abs(sums[place]))
            sums[place] *= (np.float32(1) if sums[place] >= 0 else small) / (np.float32(1) + small)
    elif activation == GELU:
        for place in range(len(sums)):
            number = sums[place]
            size = abs(number) * np.float32(0.7071067811865476)
            # Abramowitz and Stegun 7.1.26: the error function to 1.5e-7.
            t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * size)
            value = np.float32(1.061405429)
            value = value * t - np.float32(1.453152027)
            value = value * t + np.float32(1.421413741)
            value = value * t - np.float32(0.284496736)
            value = value * t + np.float32(0.254829592)
            tail = value * t * exponential(-size * size) * np.float32(0.5)
            sums[place] = number * (np.float32(1) - tail if number >= 0 else tail)
    elif activation == GELU_TANH:
        for place in range(len(sums)):
            number = sums[place]
            inner = np.float32(1.5957691216057308) * (number + np.float32(0.044715) * number * number * number)
            small = exponential(-abs(inner))
            sums[place] *= (np.float32(1) if inner >= 0 else small) / (np.float32(1) + small)
    else:
        for place in range(len(sums)):
            sums[place] = np.float32(0) if sums[place] < 0 else sums[place]


@loop
def sum_up(blocks: Any, rows: Any, given: Any, width: Any, panel: Any, sums: Any) -> None:
    """`given` [rows, width] at its address, the rows of `blocks` from start to end, times the panel at its address → `sums`
    [GROUP, COLUMNS], counted from the first of those rows.
    """
    start, end, count = blocks
    pairs = width // 2
    pieces = -(-pairs // PAIRS_AT_ONCE)
    first_row = start * rows // count
    sums[: end * rows // count - first_row] = np.float32(0)
    for piece in range(pieces):
        near, far = piece * pairs // pieces, (piece + 1) * pairs // pieces
        weights, bytes_of = panel + near * PAIR_BYTES, (far - near) * PAIR_BYTES
        for block in range(start, end):
            row, next_row = block * rows // count, (block + 1) * rows // count
            ahead = weights + bytes_of + (block % 4) * (bytes_of // 4)
            lies = sums.ctypes.data + (row - first_row) * COLUMNS * 4
            add_tile(next_row - row, given + row * width * 2 + near * 4, width * 2, weights, far - near, ahead, lies)


@loop
def add_bias(sums: Any, bias: Any) -> None:
    """`sums` [rows, COLUMNS]; `bias` [columns]."""
    for row in range(len(sums)):
        for place in range(len(bias)):
            sums[row, place] += get(bias[place])


@loop
def multiply_rows(
    given: Any, width: Any, panels: Any, biases: Any, activation: Any, added: Any, out: Any, scratch: Any
) -> None:
    """`given` [rows, width] times the panels at the address, plus a bias [columns] or [0]; with an activation that of it times the same of
    the second panels and bias; plus `added` [rows, columns] or [0, 0] → `out` [rows, columns].
    """
    rows, columns = out.shape
    count = -(-rows // ROWS)
    size = -(-width // 32) * 32 * COLUMNS * 2
    start, end = my_share(-(-columns // COLUMNS) * count)
    first, second = scratch[:GROUP], scratch[GROUP:]
    item = start
    while item < end:
        panel, from_block = item // count, item % count
        to_block = min(from_block + BLOCKS_AT_ONCE, end - panel * count, count)
        item += to_block - from_block
        blocks = from_block, to_block, count
        from_row, to_row = from_block * rows // count, to_block * rows // count
        near, far = panel * COLUMNS, min((panel + 1) * COLUMNS, columns)
        sum_up(blocks, rows, given, width, panels[0] + panel * size, first)
        if len(biases[0]):
            add_bias(first[: to_row - from_row], biases[0][near:far])
        if activation:
            sum_up(blocks, rows, given, width, panels[1] + panel * size, second)
            if len(biases[1]):
                add_bias(second[: to_row - from_row], biases[1][near:far])
        for row in range(from_row, to_row):
            sums, told = first[row - from_row], out[row, near:far]
            if activation:
                activate(sums, activation)
                factors = second[row - from_row]
                for place in range(COLUMNS):
                    sums[place] *= factors[place]
            if len(added):
                more = added[row, near:far]
                for place in range(len(more)):
                    sums[place] += get(more[place])
            for place in range(len(told)):
                told[place] = rounded(sums[place], told)


def compile_multiply() -> int:
    """Of rows, their width, columns, activation or 0, lengths of two biases and rows of what is added or 0, addresses of: rows, panels,
    second panels, biases, added, out, scratch. bfloat16 alone.
    """

    def multiply(given: Any) -> None:
        at = carray(given, (15,))
        rows, width, columns = at[0], at[1], at[2]
        scratch = pointer(FLOATS, at[14] + thread_number() * SCRATCH * 4)
        multiply_rows(
            at[7],
            width,
            (at[8], at[9]),
            (carray(pointer(BITS, at[10]), (at[4],)), carray(pointer(BITS, at[11]), (at[5],))),
            at[3],
            carray(pointer(BITS, at[12]), (at[6], columns)),
            carray(pointer(BITS, at[13]), (rows, columns)),
            carray(scratch, (2 * GROUP, COLUMNS)),
        )

    return kernel(multiply)
