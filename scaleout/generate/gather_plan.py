"""Which blocks the tokens of one step look back at. Laid out once, read by every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from scaleout.generate.attention import Geometry, Stretch

SPREAD = 1.5
"""Sequences decode as one group while the longest has no more than this times the blocks of the shortest: the rest is padding."""


@define(eq=False)
class DecodeGroup:
    """Rows `start` to `end` of the step, one per sequence. `lengths`: tokens of each, its new one included. `tables`: its blocks."""

    start: int
    end: int
    lengths: Sequence[int]
    tables: Sequence[Sequence[int]]
    geometry: Geometry
    _views: dict[tuple[int, int | None], tuple[Tensor, Tensor | None]] = field(factory=dict)

    def view(self, kv_heads: int, window: int | None) -> tuple[Tensor, Tensor | None]:
        """Block rows over all heads, [sequences * kv_heads * width], and which of their tokens are not to be seen, bool
        [sequences, 1, 1, keys] or None.
        """
        key = (kv_heads, window)
        if key not in self._views:
            self._views[key] = self._lay_out(kv_heads, window)
        return self._views[key]

    def _lay_out(self, kv_heads: int, window: int | None) -> tuple[Tensor, Tensor | None]:
        size, device = self.geometry.block_size, self.geometry.device
        lengths = np.asarray(self.lengths)
        firsts = np.zeros_like(lengths) if window is None else np.maximum(0, lengths - window) // size
        counts = -(-lengths // size) - firsts
        width = int(counts.max())
        tables = np.zeros((len(lengths), width), dtype=np.int64)
        for row, (table, first, count) in enumerate(zip(self.tables, firsts, counts, strict=True)):
            tables[row, :count] = table[first : first + count]
        rows = tables[:, None, :] + (np.arange(kv_heads) * self.geometry.blocks)[None, :, None]
        place = firsts[:, None] * size + np.arange(width * size)
        seen = place < lengths[:, None]
        if window is not None:
            seen &= place >= lengths[:, None] - window
        hidden = None
        if not seen.all():
            hidden = torch.from_numpy(~seen[:, None, None, :]).to(device)
        return torch.from_numpy(rows.reshape(-1)).to(device), hidden


@define(eq=False)
class PromptSpan:
    """Rows `start` to `end` of the step are the last of the `length` tokens that one sequence has by now."""

    start: int
    end: int
    length: int
    table: Sequence[int]
    geometry: Geometry
    closed: Sequence[tuple[int, int]] = ()
    _views: dict[tuple[int, int | None], tuple[int, Tensor]] = field(factory=dict)

    def view(self, kv_heads: int, window: int | None) -> tuple[int, Tensor]:
        """The first token that any row may see, rounded down to its block, and the block rows from there, [kv_heads * width]."""
        key = (kv_heads, window)
        if key not in self._views:
            size = self.geometry.block_size
            first = 0 if window is None else max(0, self.length - (self.end - self.start) - window + 1) // size
            table = np.asarray(self.table[first : -(-self.length // size)], dtype=np.int64)
            rows = table[None, :] + (np.arange(kv_heads) * self.geometry.blocks)[:, None]
            self._views[key] = first * size, torch.from_numpy(rows.reshape(-1)).to(self.geometry.device)
        return self._views[key]


def decode_groups(stretches: Sequence[Stretch], geometry: Geometry) -> list[DecodeGroup]:
    """The stretches of one token, which come first and sorted by length."""
    decoding = [stretch for stretch in stretches if stretch.alone]
    return [
        DecodeGroup(
            start=start,
            end=end,
            lengths=[stretch.start + 1 for stretch in decoding[start:end]],
            tables=[stretch.blocks for stretch in decoding[start:end]],
            geometry=geometry,
        )
        for start, end in split_into_groups([stretch.start // geometry.block_size + 1 for stretch in decoding])
    ]


def prompt_spans(stretches: Sequence[Stretch], geometry: Geometry) -> list[PromptSpan]:
    spans = []
    offset = 0
    for stretch in stretches:
        end = offset + stretch.count
        if not stretch.alone:
            length = stretch.start + stretch.count
            spans.append(PromptSpan(offset, end, length, stretch.blocks, geometry, stretch.closed))
        offset = end
    return spans


def split_into_groups(block_counts: Sequence[int]) -> list[tuple[int, int]]:
    """Cuts a sorted list of block counts into runs that waste little on padding."""
    runs: list[tuple[int, int]] = []
    start = 0
    for place in range(1, len(block_counts) + 1):
        if place == len(block_counts) or block_counts[place] > SPREAD * block_counts[start] + 1:
            runs.append((start, place))
            start = place
    return runs
