"""The root mean square norm over the last dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import FLOATS, carray, get, kernel, loop, my_share, pointer, rounded


@loop
def shorten(row: Any, weight: Any, least: Any, out: Any) -> None:
    """`row` [width] by its length, which is at least `least`, times `weight` [width], to `out`."""
    square = least * least
    for place in range(len(weight)):
        number = get(row[place])
        square += number * number
    factor = np.float32(1) / np.sqrt(square)
    for place in range(len(weight)):
        out[place] = rounded(get(row[place]) * factor * weight[place], out)


@loop
def shorten_rows(rows: Any, norm: Any, out: Any) -> None:
    """`norm` [1 + width]: the least length, and the weight."""
    start, end = my_share(len(rows))
    for row in range(start, end):
        shorten(rows[row], norm[1:], norm[0], out[row])


def compile_normalise(kind: int) -> int:
    """Of rows, width, addresses of: rows, norm, out."""

    def normalise(given: Any) -> None:
        at = carray(given, (5,))
        rows, width = at[0], at[1]
        shorten_rows(
            carray(pointer(kind, at[2]), (rows, width)),
            carray(pointer(FLOATS, at[3]), (1 + width,)),
            carray(pointer(kind, at[4]), (rows, width)),
        )

    return kernel(normalise)
