"""Attention by compiled loops on any processor. A prompt's products are torch's own."""

from __future__ import annotations

from functools import cache

import torch
from attrs import define, field
from torch import Tensor

from scaleout.generate.compiled.look_back import compile_look_back
from scaleout.generate.compiled.looks import Backward, Glance
from scaleout.generate.compiled.room import grown, threads_for
from scaleout.generate.compiled.team import Team
from scaleout.generate.compiled.weigh import compile_hand_out, compile_weigh

ROWS = 128
"""Of a prompt that look at once: their scores should stay in a core's cache."""


@define(eq=False)
class Plain:
    """See `Loops`."""

    team: Team
    weighing: int
    handing: int
    looking: int
    _room: Tensor = field(factory=lambda: torch.empty(0))
    _scores: Tensor = field(factory=lambda: torch.empty(0))

    def look_back(
        self, back: Backward, queries: Tensor, caches: tuple[Tensor, Tensor], glance: Glance, out: Tensor
    ) -> None:
        """The first rows of `queries` [heads, tokens, dim], scaled, at `caches` [kv_heads, blocks, block_size, dim] → `out`
        [rows, heads, dim], of at least as many rows.
        """
        heads, _, dim = queries.shape
        kv_heads, _, size, width = caches[1].shape
        columns = back.tables.shape[1]
        group = heads // kv_heads
        room, scores = size * max(dim, width) + group * (dim + width), group * columns * size
        threads = torch.get_num_threads()
        self._room, self._scores = (
            grown(self._room, threads * room, self.team),
            grown(self._scores, threads * scores, self.team),
        )
        sizes, addresses = back.numbers(queries, caches, glance, out)
        mine = self._room.data_ptr(), self._scores.data_ptr()
        self.team.run(threads, self.looking, *sizes, room, scores, *addresses, *mine)

    def weigh(self, scores: Tensor, glance: Glance) -> Tensor:
        """`scores` [heads, rows, keys], the rows being the last of the keys → weights in the same place, and what they are to be
        multiplied by, float32 [heads, rows].
        """
        heads, rows, keys = scores.shape
        shares = torch.empty(heads, rows)
        self.team.run(
            torch.get_num_threads(),
            *(self.weighing, heads, rows, keys, glance.window),
            *(scores.data_ptr(), glance.limit.data_ptr(), glance.sinks.data_ptr(), shares.data_ptr()),
        )
        return shares

    def hand_out(self, seen: Tensor, shares: Tensor, out: Tensor) -> None:
        """`seen` [heads, rows, dim] times `shares` [heads, rows] → `out` [rows, heads, dim]."""
        heads, rows, width = seen.shape
        addresses = seen.data_ptr(), shares.data_ptr(), out.data_ptr()
        self.team.run(threads_for(seen.numel()), self.handing, heads, rows, width, *addresses)

    def read_prompt(
        self, query: Tensor, keys: Tensor, values: Tensor, length: int, glance: Glance, out: Tensor
    ) -> None:
        """`query` [heads, rows, dim], the last of `length` tokens; `keys`, `values` [kv_heads, tokens, dim], with room behind → `out`
        [rows, heads, dim].
        """
        heads, count, _ = query.shape
        kv_heads = len(keys)
        for start in range(0, count, ROWS):
            end = min(start + ROWS, count)
            last = length - count + end
            first = max(0, last - (end - start) - glance.window + 1) if glance.window else 0
            asked = query[:, start:end].reshape(kv_heads, -1, query.shape[2])
            scores = torch.bmm(asked, keys[:, first:last].contiguous().transpose(1, 2))
            shares = self.weigh(scores.view(heads, end - start, last - first), glance)
            seen = torch.bmm(scores, values[:, first:last])
            self.hand_out(seen.view(heads, end - start, -1), shares, out[start:end])


@cache
def compile_plain(kind: int) -> tuple[int, int, int]:
    return compile_weigh(kind), compile_hand_out(kind), compile_look_back(kind)
