"""Scores to weights: a softmax over the part that may be seen, with a limit of scores and a sink."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaleout.generate.compiled.numbers import (
    FLOATS,
    carray,
    exponential,
    get,
    highest,
    kernel,
    loop,
    my_share,
    pointer,
    rounded,
    thread_count,
    thread_number,
)


@loop
def widen(stored: Any, out: Any) -> None:
    """[count] each: numbers as float32."""
    for place in range(len(out)):
        out[place] = get(stored[place])


@loop
def capped(score: Any, limit: Any) -> Any:
    """`limit` * tanh(score / limit)."""
    small = exponential(np.float32(-2) * abs(score) / limit)
    value = limit * (np.float32(1) - small) / (np.float32(1) + small)
    return value if score >= 0 else -value


@loop
def weigh(scores: Any, first: Any, end: Any, limit: Any, sink: Any) -> Any:
    """`scores` [keys] from `first` to `end` become e to their power, over the highest; the others 0. Returns what to divide by.

    `limit`: 0 for none. `sink` takes its share of the weight and gives nothing; -inf for none.
    """
    seen = scores[first:end]
    if limit:
        for place in range(len(seen)):
            seen[place] = capped(seen[place], limit)
    top = highest(seen, sink)
    total = np.float32(0) if sink == -np.inf else exponential(sink - top)
    for place in range(len(seen)):
        weight = exponential(seen[place] - top)
        seen[place] = weight
        total += weight
    scores[:first] = np.float32(0)
    scores[end:] = np.float32(0)
    return total


@loop
def weigh_rows(scores: Any, window: Any, limit: Any, sinks: Any, shares: Any) -> None:
    """`scores` [heads, rows, keys] of a prompt's last rows → their weights undivided, in the same place, and in `shares` [heads, rows]
    one over their sum. What comes of the weights is far smaller than they are, so that is divided: see `hand_out_rows`.
    """
    heads, rows, keys = scores.shape
    for item in range(thread_number(), heads * rows, thread_count()):
        head, row = item // rows, item % rows
        end = keys - rows + row + 1
        first = max(0, end - window) if window else 0
        own, sink = scores[head, row], sinks[head]
        seen = own[first:end]
        if limit:
            for place in range(len(seen)):
                seen[place] = rounded(capped(get(seen[place]), limit), seen)
        top = highest(seen, sink)
        total = np.float32(0) if sink == -np.inf else exponential(sink - top)
        for place in range(len(seen)):
            weight = exponential(get(seen[place]) - top)
            total += weight
            seen[place] = rounded(weight, seen)
        own[:first] = 0
        own[end:] = 0
        shares[head, row] = np.float32(1) / total


@loop
def hand_out_rows(seen: Any, shares: Any, out: Any) -> None:
    """`seen` [heads, rows, dim] times `shares` [heads, rows] → `out` [rows, heads, dim]."""
    heads, rows, _ = seen.shape
    start, end = my_share(rows)
    for row in range(start, end):
        for head in range(heads):
            given, told, share = seen[head, row], out[row, head], shares[head, row]
            for place in range(len(told)):
                told[place] = rounded(get(given[place]) * share, told)


def compile_weigh(kind: int) -> int:
    """Of heads, rows, keys, window or 0, addresses of: scores, limit, sinks, shares."""

    def weigh_prompt(given: Any) -> None:
        at = carray(given, (8,))
        weigh_rows(
            carray(pointer(kind, at[4]), (at[0], at[1], at[2])),
            at[3],
            carray(pointer(FLOATS, at[5]), (1,))[0],
            carray(pointer(FLOATS, at[6]), (at[0],)),
            carray(pointer(FLOATS, at[7]), (at[0], at[1])),
        )

    return kernel(weigh_prompt)


def compile_hand_out(kind: int) -> int:
    """Of heads, rows, dim, addresses of: seen, shares, out."""

    def hand_out(given: Any) -> None:
        at = carray(given, (6,))
        hand_out_rows(
            carray(pointer(kind, at[3]), (at[0], at[1], at[2])),
            carray(pointer(FLOATS, at[4]), (at[0], at[1])),
            carray(pointer(kind, at[5]), (at[1], at[0], at[2])),
        )

    return kernel(hand_out)
