"""How the rows of a step look back, and at which blocks, as compiled loops read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, frozen
from torch import Tensor

from scaleout.generate.compiled.read_prompt import WIDTH
from scaleout.generate.compiled.tile import COLUMNS, ROWS


@frozen(eq=False)
class Glance:
    """How scores are weighed, for compiled loops: `window` 0 for none, `limit` [1] 0 for none, `sinks` [heads] -inf for none."""

    window: int
    limit: Tensor
    sinks: Tensor

    @classmethod
    def of(cls, heads: int, window: int | None, softcap: float | None, sinks: Tensor | None) -> Glance:
        none = torch.full((heads,), float("-inf"))
        return cls(
            window or 0, torch.tensor([softcap or 0.0]), none if sinks is None else sinks.detach().float().contiguous()
        )


@define(eq=False)
class Backward:
    """Which blocks the first rows of a step look back at: `tables` int64 [rows, width], `lengths` int64 [rows]."""

    tables: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> Backward:
        wide = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int64)
        for row, table in enumerate(tables):
            wide[row, : len(table)] = table
        return cls(wide, np.asarray(lengths, dtype=np.int64))

    def numbers(
        self, queries: Tensor, caches: tuple[Tensor, Tensor], glance: Glance, out: Tensor
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Sizes and addresses, as both loops that look back are told them: see `compile_look_back`."""
        keys, values = caches
        heads, count, dim = queries.shape
        kv_heads, blocks, size, width = values.shape
        rows, columns = self.tables.shape
        sizes = rows, count, heads, kv_heads, dim, width, blocks, size, columns, glance.window
        places = self.tables.ctypes.data, self.lengths.ctypes.data
        tensors = queries, keys, values, glance.limit, glance.sinks, out
        asked, *kept, limit, sinks, told = (tensor.data_ptr() for tensor in tensors)
        return sizes, (asked, *kept, *places, limit, sinks, told)


@define(eq=False)
class Spans:
    """`numbers` int64 [spans, WIDTH], see `read_prompt`; `tables` int64 of all of them; `most`: panels of the longest."""

    numbers: np.ndarray
    tables: np.ndarray
    panels: int
    blocks: int
    most: int

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int, int, Sequence[int]]], window: int | None, size: int) -> Spans:
        """Of each: from which to which row, tokens of its sequence by now, its blocks of `size` tokens."""
        numbers = np.zeros((len(spans), WIDTH), dtype=np.int64)
        tables: list[int] = []
        panels = blocks = most = 0
        for row, (start, end, length, table) in enumerate(spans):
            first = 0 if window is None else max(0, length - (end - start) - window + 1) // size
            numbers[row] = start, end, length, first * size, len(tables), panels, blocks
            tables += table[first : -(-length // size)]
            own = -(-(length - first * size) // COLUMNS)
            panels, blocks, most = panels + own, blocks + -(-(end - start) // ROWS), max(most, own)
        return cls(numbers, np.asarray(tables, dtype=np.int64), panels, blocks, most)
