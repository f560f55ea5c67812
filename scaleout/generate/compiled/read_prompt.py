"""A prompt's tokens look at what is before them: the sequence's blocks are laid out as panels, over which its rows pass, six at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import (
    BITS,
    FLOATS,
    PAIRS,
    PLACES,
    carray,
    exponential,
    highest,
    kernel,
    loop,
    pointer,
    rounded,
    thread_count,
    thread_number,
)
from scaleout.generate.compiled.tile import COLUMNS, LANES, PAIR_BYTES, ROWS, add_tile, turn_square
from scaleout.generate.compiled.weigh import capped

START, END, LENGTH, FIRST, TABLE, PANELS, BLOCKS, WIDTH = range(8)
"""What the loops are told of a span: its rows of the step; its sequence's tokens by now; the first one that any row may see, which begins
a block; where its blocks stand in the tables; panels of the spans before it, and its rows' blocks; how many numbers these are.
"""


@loop
def span_of(spans: Any, before: Any, item: Any) -> Any:
    """The last of `spans` that has no more than `item` of what `before` counts in front of it."""
    found = 0
    while found + 1 < len(spans) and spans[found + 1, before] <= item:
        found += 1
    return found


@loop
def lay_out_keys(keys: Any, table: Any, size: Any, near: Any, count: Any, panel: Any) -> None:
    """`count` tokens from `near` of `keys` [blocks, size * half], two numbers as one → `panel` [half, COLUMNS]. In the rest of its columns
    stands anything.
    """
    half = len(panel)
    if size % LANES == 0 and half % LANES == 0:
        for token in range(0, count, LANES):
            place = near + token
            block, start = table[place // size], place % size * half
            for pair in range(0, half, LANES):
                given = keys[block, start + pair :].ctypes.data
                turn_square(given, half * 4, panel[pair, token:].ctypes.data)
    else:
        for token in range(count):
            place = near + token
            start = place % size * half
            row = keys[table[place // size], start : start + half]
            for pair in range(half):
                panel[pair, token] = row[pair]


@loop
def lay_out_values(
    values: Any, table: Any, size: Any, near: Any, count: Any, half: Any, first: Any, panel: Any
) -> None:
    """`count` tokens from `near` of `values` [blocks, size * half], two numbers as one, and of these those from `first` → `panel`
    [COLUMNS / 2, COLUMNS], two tokens as one: of each pair the first numbers, then the second ones. The rest is 0.
    """
    columns = min(COLUMNS // 2, half - first)
    if count < COLUMNS or columns < COLUMNS // 2:
        panel[:] = np.uint32(0)
    for token in range(0, count, 2):
        place = near + token
        start = place % size * half + first
        row, line = values[table[place // size], start : start + columns], panel[token // 2]
        evens, odds = line[:columns], line[COLUMNS // 2 : COLUMNS // 2 + columns]
        if token + 1 < count:
            place += 1
            start = place % size * half + first
            other = values[table[place // size], start : start + columns]
            for number in range(columns):
                one, two = row[number], other[number]
                evens[number] = np.uint32((one & np.uint32(0xFFFF)) | (two << np.uint32(16)))
                odds[number] = np.uint32((one >> np.uint32(16)) | (two & np.uint32(0xFFFF0000)))
        else:
            for number in range(columns):
                evens[number] = np.uint32(row[number] & np.uint32(0xFFFF))
                odds[number] = np.uint32(row[number] >> np.uint32(16))


@loop
def hand_out_part(sums: Any, share: Any, out: Any) -> None:
    """`sums` [COLUMNS] of a panel of values, times `share` → `out` [numbers], of which there may be fewer."""
    for pair in range(len(out) // 2):
        out[2 * pair] = rounded(sums[pair] * share, out)
        out[2 * pair + 1] = rounded(sums[COLUMNS // 2 + pair] * share, out)


@loop
def lay_out_spans(spans: Any, tables: Any, size: Any, width: Any, total: Any, caches: Any, rooms: Any) -> None:
    """`caches`: keys and values [kv_heads, blocks, size * half], two numbers as one; `rooms` [kv_heads, total, half, COLUMNS] for keys and
    [panels, COLUMNS / 2, COLUMNS] for values: of a span, a head and 64 of its numbers one behind the other.
    """
    keys, values = caches
    kv_heads, wide = len(keys), -(-width // COLUMNS)
    for item in range(thread_number(), kv_heads * total, thread_count()):
        head, panel = item // total, item % total
        index = span_of(spans, PANELS, panel)
        span = spans[index]
        near = (panel - span[PANELS]) * COLUMNS
        count = min(COLUMNS, span[LENGTH] - span[FIRST] - near)
        panels = (spans[index + 1, PANELS] if index + 1 < len(spans) else total) - span[PANELS]
        table = tables[span[TABLE] :]
        lay_out_keys(keys[head], table, size, near, count, rooms[0][head, panel])
        for part in range(wide):
            place = span[PANELS] * kv_heads * wide + (head * wide + part) * panels + panel - span[PANELS]
            lay_out_values(values[head], table, size, near, count, width // 2, part * COLUMNS // 2, rooms[1][place])


@loop
def weigh_row(scores: Any, row: Any, first: Any, end: Any, limit: Any, sink: Any, weights: Any) -> Any:
    """`scores` [panels, ROWS, COLUMNS] of one row, of which it sees those from `first` to `end` → `weights` [panels * COLUMNS], undivided.
    Returns what to divide by. `limit` and `sink`: see `weigh`.
    """
    top = sink
    for panel in range(len(scores)):
        near = panel * COLUMNS
        seen = scores[panel, row, max(first - near, 0) : max(min(end - near, COLUMNS), 0)]
        if limit:
            for place in range(len(seen)):
                seen[place] = capped(seen[place], limit)
        top = highest(seen, top)
    total = np.float32(0) if sink == -np.inf else exponential(sink - top)
    for panel in range(len(scores)):
        near = panel * COLUMNS
        start, stop = min(max(first - near, 0), COLUMNS), max(min(end - near, COLUMNS), 0)
        told = weights[near : near + COLUMNS]
        if start > 0 or stop < COLUMNS:
            told[:] = 0
        seen = scores[panel, row, start:stop]
        for place in range(len(seen)):
            weight = exponential(seen[place] - top)
            total += weight
            told[start + place] = rounded(weight, told)
    return total


@loop
def read_rows(
    queries: Any,
    spans: Any,
    total: Any,
    blocks: Any,
    width: Any,
    looks: Any,
    rooms: Any,
    out: Any,
    room: Any,
    weights: Any,
) -> None:
    """`queries` [heads, tokens, dim], scaled; `spans` and `rooms` as in `lay_out_spans`, the latter addresses; `blocks`: of rows, of all
    spans together; `looks`: window, limit, sinks [heads] → `out` [tokens, heads, width]. `room` and `weights` belong to this thread.
    """
    heads, dim = len(queries), queries.shape[2]
    window, limit, sinks = looks
    kv_heads, wide, half = rooms[2], -(-width // COLUMNS), dim // 2
    answers = room[: ROWS * COLUMNS].reshape(ROWS, COLUMNS)
    for item in range(thread_number(), heads * blocks, thread_count()):
        head, block = item // blocks, item % blocks
        index = span_of(spans, BLOCKS, block)
        span = spans[index]
        own = (spans[index + 1, BLOCKS] if index + 1 < len(spans) else blocks) - span[BLOCKS]
        panels = (spans[index + 1, PANELS] if index + 1 < len(spans) else total) - span[PANELS]
        count, number = span[END] - span[START], block - span[BLOCKS]
        from_row, to_row = number * count // own, (number + 1) * count // own
        rows = to_row - from_row
        place = span[LENGTH] - count + from_row - span[FIRST]
        begun = max(0, place + 1 - window) // COLUMNS if window else 0
        ended = -(-(place + rows) // COLUMNS)
        kv_head = head // (heads // kv_heads)
        base = queries.ctypes.data + (head * queries.shape[1] + span[START] + from_row) * dim * 2
        scores = room[ROWS * COLUMNS : (ended - begun + 1) * ROWS * COLUMNS].reshape(ended - begun, ROWS, COLUMNS)
        scores[:] = np.float32(0)
        for panel in range(begun, ended):
            lies = rooms[0] + (kv_head * total + span[PANELS] + panel) * half * PAIR_BYTES
            told = scores.ctypes.data + (panel - begun) * ROWS * COLUMNS * 4
            add_tile(rows, base, dim * 2, lies, half, lies + half * PAIR_BYTES, told)
        across = (ended - begun) * COLUMNS
        shares = room[-ROWS:]
        for row in range(rows):
            end = place + row + 1 - begun * COLUMNS
            first = max(0, end - window) if window else 0
            shares[row] = np.float32(1) / weigh_row(
                scores, row, first, end, limit, sinks[head], weights[row * across : (row + 1) * across]
            )
        for part in range(wide):
            answers[:] = np.float32(0)
            lies = span[PANELS] * kv_heads * wide + (kv_head * wide + part) * panels + begun
            lies = rooms[1] + lies * (COLUMNS // 2) * PAIR_BYTES
            add_tile(rows, weights.ctypes.data, across * 2, lies, across // 2, lies, answers.ctypes.data)
            near = part * COLUMNS
            for row in range(rows):
                told = out[span[START] + from_row + row, head, near : min(near + COLUMNS, width)]
                hand_out_part(answers[row], shares[row], told)


def compile_lay_out() -> int:
    """Of spans, their tables' length, size of a block, kv heads, blocks, dims of a key and a value, panels, addresses of: spans, tables,
    keys, values, rooms for keys and for values. bfloat16 alone.
    """

    def lay_out_prompt(given: Any) -> None:
        at = carray(given, (14,))
        size, kv_heads, blocks, dim, width, total = at[2], at[3], at[4], at[5], at[6], at[7]
        wide = -(-width // COLUMNS)
        lay_out_spans(
            carray(pointer(PLACES, at[8]), (at[0], WIDTH)),
            carray(pointer(PLACES, at[9]), (at[1],)),
            size,
            width,
            total,
            (
                carray(pointer(PAIRS, at[10]), (kv_heads, blocks, size * (dim // 2))),
                carray(pointer(PAIRS, at[11]), (kv_heads, blocks, size * (width // 2))),
            ),
            (
                carray(pointer(PAIRS, at[12]), (kv_heads, total, dim // 2, COLUMNS)),
                carray(pointer(PAIRS, at[13]), (kv_heads * total * wide, COLUMNS // 2, COLUMNS)),
            ),
        )

    return kernel(lay_out_prompt)


def compile_read_prompt() -> int:
    """Of spans, tokens of the step, heads, kv heads, dims of a key and a value, panels, blocks of rows, window or 0, floats of room and
    weights per thread, addresses of: spans, queries, rooms for keys and for values, limit, sinks, out, room, weights. bfloat16 alone.
    """

    def read_prompt(given: Any) -> None:
        at = carray(given, (20,))
        tokens, heads, kv_heads, dim, width = at[1], at[2], at[3], at[4], at[5]
        read_rows(
            carray(pointer(BITS, at[12]), (heads, tokens, dim)),
            carray(pointer(PLACES, at[11]), (at[0], WIDTH)),
            at[6],
            at[7],
            width,
            (at[8], carray(pointer(FLOATS, at[15]), (1,))[0], carray(pointer(FLOATS, at[16]), (heads,))),
            (at[13], at[14], kv_heads),
            carray(pointer(BITS, at[17]), (tokens, heads, width)),
            carray(pointer(FLOATS, at[18]), (thread_count(), at[9]))[thread_number()],
            carray(pointer(BITS, at[19]), (thread_count(), at[10]))[thread_number()],
        )

    return kernel(read_prompt)
