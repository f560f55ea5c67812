"""Tokens that are each the last of their sequence look back at its blocks, where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import (
    FLOATS,
    PLACES,
    carray,
    kernel,
    loop,
    pointer,
    rounded,
    thread_count,
    thread_number,
)
from scaleout.generate.compiled.weigh import weigh, widen

AT_ONCE = 4
"""Tokens. A block holds a multiple of these."""


@loop
def score(query: Any, keys: Any, scores: Any) -> None:
    """`query` [dim], `keys` [tokens * dim] → `scores` [tokens]. Four tokens share what is read of the query."""
    dim = len(query)
    for token in range(0, len(scores), AT_ONCE):
        near = keys[token * dim : (token + AT_ONCE) * dim]
        one, two, three, four = near[:dim], near[dim : 2 * dim], near[2 * dim : 3 * dim], near[3 * dim :]
        first = second = third = fourth = np.float32(0)
        for place in range(dim):
            number = query[place]
            first += number * one[place]
            second += number * two[place]
            third += number * three[place]
            fourth += number * four[place]
        scores[token], scores[token + 1], scores[token + 2], scores[token + 3] = first, second, third, fourth


@loop
def mix(weights: Any, values: Any, out: Any) -> None:
    """Adds `values` [tokens * dim], each token's times its weight, to `out` [dim]."""
    dim = len(out)
    for token in range(0, len(weights), AT_ONCE):
        near = values[token * dim : (token + AT_ONCE) * dim]
        one, two, three, four = near[:dim], near[dim : 2 * dim], near[2 * dim : 3 * dim], near[3 * dim :]
        first, second, third, fourth = weights[token], weights[token + 1], weights[token + 2], weights[token + 3]
        for place in range(dim):
            out[place] += first * one[place] + second * two[place] + third * three[place] + fourth * four[place]


@loop
def look_back_rows(
    queries: Any,
    keys: Any,
    values: Any,
    tables: Any,
    lengths: Any,
    size: Any,
    looks: Any,
    out: Any,
    room: Any,
    scores: Any,
) -> None:
    """`queries` [heads, rows, dim], scaled; `keys`, `values` [kv_heads, blocks, size * dim]; `tables` [rows, blocks]; `lengths`
    [rows], with the row's own token; `looks`: window, limit, sinks [heads] → `out` [rows, heads, dim]. `room` and `scores` belong to
    this thread.
    """
    heads, kv_heads, dim, width = len(queries), len(keys), queries.shape[2], out.shape[2]
    group = heads // kv_heads
    window, limit, sinks = looks
    wide, answers = room[: size * max(dim, width)], room[size * max(dim, width) :]
    asked = answers[group * width :]
    for item in range(thread_number(), len(lengths) * kv_heads, thread_count()):
        row, kv_head = item // kv_heads, item % kv_heads
        length = lengths[row]
        first = max(0, length - window) if window else 0
        skipped = first // size
        table = tables[row, skipped : -(-length // size)]
        across = len(table) * size
        for member in range(group):
            widen(queries[kv_head * group + member, row], asked[member * dim : (member + 1) * dim])
        for block in range(len(table)):
            widen(keys[kv_head, table[block]], wide[: size * dim])
            for member in range(group):
                start = member * across + block * size
                score(asked[member * dim : (member + 1) * dim], wide[: size * dim], scores[start : start + size])
        for member in range(group):
            own = scores[member * across : (member + 1) * across]
            total = weigh(own, first - skipped * size, length - skipped * size, limit, sinks[kv_head * group + member])
            share = np.float32(1) / total
            for place in range(across):
                own[place] *= share
        answers[: group * width] = np.float32(0)
        for block in range(len(table)):
            widen(values[kv_head, table[block]], wide[: size * width])
            # Behind the last token may lie what another sequence left, and nothing times NaN is NaN.
            wide[max(0, length - (skipped + block) * size) * width : size * width] = np.float32(0)
            for member in range(group):
                start = member * across + block * size
                mix(scores[start : start + size], wide[: size * width], answers[member * width : (member + 1) * width])
        for member in range(group):
            told = out[row, kv_head * group + member]
            for place in range(width):
                told[place] = rounded(answers[member * width + place], told)


def compile_look_back(kind: int) -> int:
    """Of rows, tokens of the step, heads, kv heads, dims of a key and a value, blocks, their size, width of the tables, window or 0,
    floats of room and of scores per thread, addresses of: queries, keys, values, tables, lengths, limit, sinks, out, room, scores.
    """

    def look_back(given: Any) -> None:
        at = carray(given, (22,))
        rows, heads, kv_heads, dim, width, blocks, size = at[0], at[2], at[3], at[4], at[5], at[6], at[7]
        look_back_rows(
            carray(pointer(kind, at[12]), (heads, at[1], dim)),
            carray(pointer(kind, at[13]), (kv_heads, blocks, size * dim)),
            carray(pointer(kind, at[14]), (kv_heads, blocks, size * width)),
            carray(pointer(PLACES, at[15]), (rows, at[8])),
            carray(pointer(PLACES, at[16]), (rows,)),
            size,
            (at[9], carray(pointer(FLOATS, at[17]), (1,))[0], carray(pointer(FLOATS, at[18]), (heads,))),
            carray(pointer(kind, at[19]), (rows, heads, width)),
            carray(pointer(FLOATS, at[20]), (thread_count(), at[10]))[thread_number()],
            carray(pointer(FLOATS, at[21]), (thread_count(), at[11]))[thread_number()],
        )

    return kernel(look_back)
