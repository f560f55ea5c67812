"""Paged attention from torch's everyday operations: runs on any device, with sliding windows, soft caps and sinks.

The tokens that decode look back together, in groups of similar length; a stretch of a prompt looks back by itself, a few rows at a
time. Blocks are copied together before each look: that costs little, and what follows are plain batched products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, Look, Stretch, slots_of, zeros
from scaleout.generate.gather_plan import DecodeGroup, PromptSpan, decode_groups, prompt_spans

ROWS = 64
"""Prompt rows that look back at once: their scores should stay in a core's cache."""


class GatherKernel:
    """`caches[layer]` is a pair of [kv_heads, blocks, block_size, dim] tensors: the blocks of a head lie together."""

    def __init__(self, shapes: Mapping[int, LayerShape], geometry: Geometry) -> None:
        self.geometry = geometry
        blocks, size = geometry.blocks, geometry.block_size
        self.caches = {
            layer: (
                zeros((shape.kv_heads, blocks, size, shape.key_dim), geometry),
                zeros((shape.kv_heads, blocks, size, shape.value_dim), geometry),
            )
            for layer, shape in shapes.items()
        }
        self._slots = torch.zeros(0, dtype=torch.int64)
        self._padding = 0
        self._groups: Sequence[DecodeGroup] = ()
        self._spans: Sequence[PromptSpan] = ()

    def prepare(self, stretches: Sequence[Stretch], padding: int = 0) -> None:
        self._slots = torch.from_numpy(slots_of(stretches, self.geometry, padding)).to(self.geometry.device)
        self._padding = padding
        self._groups = decode_groups(stretches, self.geometry)
        self._spans = prompt_spans(stretches, self.geometry)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, look: Look) -> Tensor:
        keys, values = self.caches[layer]
        keys.flatten(1, 2).index_copy_(1, self._slots, key)
        values.flatten(1, 2).index_copy_(1, self._slots, value)
        query = query * look.scale
        out = query.new_empty(query.shape[1], query.shape[0], values.shape[3])
        out[len(out) - self._padding :] = 0
        for group in self._groups:
            out[group.start : group.end] = decode(query[:, group.start : group.end], keys, values, group, look)
        for span in self._spans:
            read(query[:, span.start : span.end], keys, values, span, look, out[span.start : span.end])
        return out

    def close(self) -> None:
        self.caches.clear()


def decode(query: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, look: Look) -> Tensor:
    """`query` [heads, sequences, dim], scaled, one per sequence → [sequences, heads, value_dim]."""
    heads, count, dim = query.shape
    kv_heads = keys.shape[0]
    rows, hidden = group.view(kv_heads, look.window)
    seen_keys = gather(keys, rows).view(count, kv_heads, -1, dim)
    seen_values = gather(values, rows).view(count, kv_heads, seen_keys.shape[2], -1)
    grouped = query.transpose(0, 1).reshape(count, kv_heads, heads // kv_heads, dim)
    scores = torch.matmul(grouped, seen_keys.transpose(2, 3))
    if look.softcap is not None:
        scores = look.softcap * torch.tanh(scores / look.softcap)
    if hidden is not None:
        scores = scores.add_(hidden)
    weights = weigh(scores.view(count, heads, 1, -1), look.sinks).view(count, kv_heads, heads // kv_heads, -1)
    return torch.matmul(weights, seen_values).view(count, heads, -1)


def read(query: Tensor, keys: Tensor, values: Tensor, span: PromptSpan, look: Look, out: Tensor) -> None:
    """`query` [heads, rows, dim], scaled, the last rows of a sequence → `out` [rows, heads, value_dim]."""
    heads, count, dim = query.shape
    kv_heads = keys.shape[0]
    first_key, rows = span.view(kv_heads, look.window)
    seen_keys = gather(keys, rows).view(kv_heads, -1, dim).transpose(1, 2)
    seen_values = gather(values, rows).view(kv_heads, seen_keys.shape[2], -1)
    at_once = count if count <= 2 * ROWS else ROWS
    for start in range(0, count, at_once):
        end = min(start + at_once, count)
        last = span.length - count + end - first_key
        first = 0 if look.window is None else max(0, last - (end - start) - look.window + 1)
        few = query[:, start:end].reshape(kv_heads, heads // kv_heads * (end - start), dim)
        scores = torch.matmul(few, seen_keys[:, :, first:last]).view(heads, end - start, last - first)
        if look.softcap is not None:
            scores = look.softcap * torch.tanh(scores / look.softcap)
        hide(scores, look.window)
        weights = weigh(scores, look.sinks).view(kv_heads, -1, last - first)
        out[start:end] = torch.matmul(weights, seen_values[:, first:last]).view(heads, end - start, -1).transpose(0, 1)


def weigh(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax of `scores` [..., heads, queries, keys]; a head's sink takes its share of the weight and gives nothing."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


def gather(cache: Tensor, rows: Tensor) -> Tensor:
    """`cache` [kv_heads, blocks, block_size, dim]: whole blocks by their numbers over all heads, in one run of copies."""
    return cache.view(cache.shape[0] * cache.shape[1], -1).index_select(0, rows)


def hide(scores: Tensor, window: int | None) -> None:
    """`scores` [heads, queries, keys], the queries being the last of the keys: nobody looks ahead, or back beyond the window."""
    queries, keys = scores.shape[1:]
    if queries > 1:
        scores[:, :, keys - queries :].masked_fill_(ahead(queries, scores.device), float("-inf"))
    if window is not None and keys > window:
        place = torch.arange(keys, device=scores.device)
        behind = place[keys - queries :, None] - place
        scores.masked_fill_(behind >= window, float("-inf"))


@lru_cache(maxsize=2 * ROWS)
def ahead(count: int, device: torch.device) -> Tensor:
    """[count, count], true where the key is later than the query."""
    return torch.ones(count, count, dtype=torch.bool, device=device).triu(1)
