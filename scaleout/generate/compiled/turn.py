"""From the product of a step's rows with the query, key and value weights: queries to look with, keys and values into the cache."""

from __future__ import annotations

from typing import Any

from scaleout.generate.compiled.norm import shorten
from scaleout.generate.compiled.numbers import FLOATS, PLACES, carray, get, kernel, loop, my_share, pointer, rounded


@loop
def turn_head(head: Any, cosines: Any, sines: Any, out: Any) -> None:
    """The rotary embedding of one head, [dim] each. `out` may be `head`."""
    half = len(cosines) // 2
    for place in range(half):
        first, second = get(head[place]), get(head[half + place])
        out[place] = rounded(first * get(cosines[place]) - second * get(sines[place]), out)
        out[half + place] = rounded(second * get(cosines[half + place]) + first * get(sines[half + place]), out)


@loop
def turn_rows(
    rows: Any, cosines: Any, sines: Any, slots: Any, keys: Any, values: Any, queries: Any, norms: Any
) -> None:
    """`rows` [tokens, heads, dim]; `cosines`, `sines` [tokens, dim]; `keys`, `values` [kv_heads, slots, dim];
    `queries` [query_heads, tokens, dim]; `norms` [2, 1 + dim]: of query and key heads, the least length in front; or [2, 0].
    """
    query_heads, kv_heads = len(queries), len(keys)
    start, end = my_share(len(rows))
    for row in range(start, end):
        for head in range(query_heads + kv_heads):
            given = rows[row, head]
            asks = head < query_heads
            out = queries[head, row] if asks else keys[head - query_heads, slots[row]]
            if norms.shape[1]:
                norm = norms[0 if asks else 1]
                shorten(given, norm[1:], norm[0], out)
                given = out
            turn_head(given, cosines[row], sines[row], out)
        for head in range(kv_heads):
            kept, told = values[head, slots[row]], rows[row, query_heads + kv_heads + head]
            for place in range(len(told)):
                kept[place] = told[place]


def compile_turn(kind: int) -> int:
    """Of tokens, query heads, kv heads, dim, slots, length of a norm or 0, addresses of: rows, cosines, sines, slots, keys, values,
    queries, norms.
    """

    def turn(given: Any) -> None:
        at = carray(given, (14,))
        count, query_heads, kv_heads, dim, room = at[0], at[1], at[2], at[3], at[4]
        turn_rows(
            carray(pointer(kind, at[6]), (count, query_heads + 2 * kv_heads, dim)),
            carray(pointer(kind, at[7]), (count, dim)),
            carray(pointer(kind, at[8]), (count, dim)),
            carray(pointer(PLACES, at[9]), (count,)),
            carray(pointer(kind, at[10]), (kv_heads, room, dim)),
            carray(pointer(kind, at[11]), (kv_heads, room, dim)),
            carray(pointer(kind, at[12]), (query_heads, count, dim)),
            carray(pointer(FLOATS, at[13]), (2, at[5])),
        )

    return kernel(turn)
