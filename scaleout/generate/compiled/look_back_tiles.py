"""As `look_back`, by tiles: 64 tokens at a time are laid out as a panel, over which the heads pass that share it."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import (
    BITS,
    FLOATS,
    PAIRS,
    PLACES,
    carray,
    kernel,
    loop,
    pointer,
    thread_count,
    thread_number,
)
from scaleout.generate.compiled.read_prompt import hand_out_part, lay_out_keys, lay_out_values, weigh_row
from scaleout.generate.compiled.tile import COLUMNS, ROWS, add_tile, fetch


@loop
def fetch_tokens(cache: Any, table: Any, size: Any, near: Any, end: Any) -> None:
    """Those from `near` to `end`, in good time. `cache` [blocks, size * half], two numbers as one."""
    half = cache.shape[1] // size
    while near < end:
        start = near % size
        count = min(size - start, end - near)
        fetch(cache[table[near // size], start * half :].ctypes.data, count * half * 4)
        near += count


@loop
def add_tiles(rows: Any, given: Any, stride: Any, panel: Any, pairs: Any, out: Any) -> None:
    """As `add_tile`, of any number of rows."""
    for row in range(0, rows, ROWS):
        few = min(ROWS, rows - row)
        add_tile(few, given + row * stride, stride, panel, pairs, panel, out + row * COLUMNS * 4)


@loop
def look_back_tiles(
    queries: Any,
    keys: Any,
    values: Any,
    tables: Any,
    lengths: Any,
    size: Any,
    looks: Any,
    out: Any,
    room: Any,
    weights: Any,
) -> None:
    """`queries` [heads, rows, dim], scaled; `keys`, `values` [kv_heads, blocks, size * half], two numbers as one; `tables` [rows, blocks];
    `lengths` [rows], with the row's own token; `looks`: window, limit, sinks [heads] → `out` [rows, heads, width]. `room` and `weights`
    belong to this thread.
    """
    heads, dim = len(queries), queries.shape[2]
    kv_heads, width, half = len(keys), out.shape[2], dim // 2
    group, wide = heads // kv_heads, -(-width // COLUMNS)
    window, limit, sinks = looks
    stride, most = queries.shape[1] * dim * 2, len(weights) // group
    answers = room[: group * wide * COLUMNS].reshape(wide, group, COLUMNS)
    rest = room[group * wide * COLUMNS :]
    lies = rest.ctypes.data
    panel = carray(pointer(PAIRS, lies), (max(half, COLUMNS // 2), COLUMNS))
    rest = rest[max(half, COLUMNS // 2) * COLUMNS :]
    items = len(lengths) * kv_heads
    for item in range(thread_number(), items, thread_count()):
        row, kv_head = item // kv_heads, item % kv_heads
        length, table = lengths[row], tables[row]
        begun = max(0, length - window) // COLUMNS if window else 0
        panels = -(-length // COLUMNS) - begun
        scores = rest[: panels * group * COLUMNS].reshape(panels, group, COLUMNS)
        scores[:] = np.float32(0)
        answers[:] = np.float32(0)
        asked = queries.ctypes.data + (kv_head * group * queries.shape[1] + row) * dim * 2
        for number in range(panels):
            near = (begun + number) * COLUMNS
            end = min(near + COLUMNS, length)
            fetch_tokens(values[kv_head], table, size, near, end)
            lay_out_keys(keys[kv_head], table, size, near, end - near, panel[:half])
            add_tiles(group, asked, stride, lies, half, scores[number].ctypes.data)
        own = length - begun * COLUMNS
        for member in range(group):
            told = weights[member * most : member * most + panels * COLUMNS]
            total = weigh_row(
                scores, member, max(0, own - window) if window else 0, own, limit, sinks[kv_head * group + member], told
            )
            scores[0, member, 0] = np.float32(1) / total  # where nobody looks any more
        later = min(item + thread_count(), items - 1)
        for number in range(panels):
            near = (begun + number) * COLUMNS
            end = min(near + COLUMNS, length)
            fetch_tokens(
                keys[later % kv_heads], tables[later // kv_heads], size, near, min(end, lengths[later // kv_heads])
            )
            for part in range(wide):
                lay_out_values(
                    values[kv_head],
                    table,
                    size,
                    near,
                    end - near,
                    width // 2,
                    part * COLUMNS // 2,
                    panel[: COLUMNS // 2],
                )
                given = weights.ctypes.data + number * COLUMNS * 2
                add_tiles(group, given, most * 2, lies, COLUMNS // 2, answers[part].ctypes.data)
        for member in range(group):
            for part in range(wide):
                near = part * COLUMNS
                told = out[row, kv_head * group + member, near : min(near + COLUMNS, width)]
                hand_out_part(answers[part, member], scores[0, member, 0], told)


def compile_look_back_tiles() -> int:
    """Of rows, tokens of the step, heads, kv heads, dims of a key and a value, blocks, their size, width of the tables, window or 0,
    floats of room and weights per thread, addresses of: queries, keys, values, tables, lengths, limit, sinks, out, room, weights.
    bfloat16 alone.
    """

    def look_back_by_tiles(given: Any) -> None:
        at = carray(given, (22,))
        rows, heads, kv_heads, dim, width, blocks, size = at[0], at[2], at[3], at[4], at[5], at[6], at[7]
        look_back_tiles(
            carray(pointer(BITS, at[12]), (heads, at[1], dim)),
            carray(pointer(PAIRS, at[13]), (kv_heads, blocks, size * (dim // 2))),
            carray(pointer(PAIRS, at[14]), (kv_heads, blocks, size * (width // 2))),
            carray(pointer(PLACES, at[15]), (rows, at[8])),
            carray(pointer(PLACES, at[16]), (rows,)),
            size,
            (at[9], carray(pointer(FLOATS, at[17]), (1,))[0], carray(pointer(FLOATS, at[18]), (heads,))),
            carray(pointer(BITS, at[19]), (rows, heads, width)),
            carray(pointer(FLOATS, at[20]), (thread_count(), at[10]))[thread_number()],
            carray(pointer(BITS, at[21]), (thread_count(), at[11]))[thread_number()],
        )

    return kernel(look_back_by_tiles)
