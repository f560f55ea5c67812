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
        self._key_space, self._value_space = Space(), Space()
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
        for group in self._groups:
            rows, hidden = group.view(len(keys), look.window)
            heads = (group.end - group.start) * len(keys)
            seen = self._key_space.gather(keys, rows, heads), self._value_space.gather(values, rows, heads)
            out[group.start : group.end] = decode(query[:, group.start : group.end], *seen, hidden, look)
        for span in self._spans:
            first, rows = span.view(len(keys), None if span.closed else look.window)
            seen = self._key_space.gather(keys, rows, len(keys)), self._value_space.gather(values, rows, len(keys))
            asked, answer = query[:, span.start : span.end], out[span.start : span.end]
            if span.closed:
                read_closed(asked, *seen, span.length, span.closed, look, answer)
            else:
                read(asked, *seen, span.length - first, look, answer)
        out[len(out) - self._padding :] = 0
        return out

    def close(self) -> None:
        self.caches.clear()


class Space:
    """Where gathered blocks lie until the next gathering. One place for all layers: fresh memory would have to be mapped each time."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def gather(self, cache: Tensor, rows: Tensor, heads: int) -> Tensor:
        """`cache` [kv_heads, blocks, block_size, dim] → the blocks `rows`, counted over all heads, as [heads, tokens, dim]."""
        kv_heads, blocks, size, dim = cache.shape
        count = len(rows) * size * dim
        if self._numbers.numel() < count:
            self._numbers = cache.new_empty(count)
        out = self._numbers[:count].view(len(rows), size * dim)
        torch.index_select(cache.view(kv_heads * blocks, size * dim), 0, rows, out=out)
        return out.view(heads, -1, dim)


def decode(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, look: Look) -> Tensor:
    """`query` [heads, sequences, dim], scaled, one per sequence; `keys`, `values` [sequences * kv_heads, tokens, dim]; `hidden`
    [sequences, 1, 1, tokens] is added to the scores → [sequences, heads, value_dim].
    """
    heads, count, dim = query.shape
    scores = torch.bmm(query.transpose(0, 1).reshape(len(keys), -1, dim), keys.transpose(1, 2))
    if look.softcap is not None:
        scores = look.softcap * torch.tanh(scores / look.softcap)
    by_head = scores.view(count, heads, 1, -1)
    if hidden is not None:
        by_head.add_(hidden)
    return torch.bmm(weigh(by_head, look.sinks).view(scores.shape), values).view(count, heads, -1)


def read(query: Tensor, keys: Tensor, values: Tensor, length: int, look: Look, out: Tensor) -> None:
    """`query` [heads, rows, dim], scaled, the last of `length` tokens; `keys`, `values` [kv_heads, tokens, dim], with room behind
    → `out` [rows, heads, value_dim].
    """
    heads, count, dim = query.shape
    turned = keys.transpose(1, 2)
    at_once = count if count <= 2 * ROWS else ROWS
    for start in range(0, count, at_once):
        end = min(start + at_once, count)
        last = length - count + end
        first = 0 if look.window is None else max(0, last - (end - start) - look.window + 1)
        few = query[:, start:end].reshape(len(keys), -1, dim)
        scores = torch.bmm(few, turned[:, :, first:last]).view(heads, end - start, last - first)
        if look.softcap is not None:
            scores = look.softcap * torch.tanh(scores / look.softcap)
        hide(scores, look.window)
        weights = weigh(scores, look.sinks).view(len(keys), -1, last - first)
        out[start:end] = torch.bmm(weights, values[:, first:last]).view(heads, end - start, -1).transpose(0, 1)


def read_closed(
    query: Tensor, keys: Tensor, values: Tensor, length: int, closed: Sequence[tuple[int, int]], look: Look, out: Tensor
) -> None:
    """As `read`, over all keys from the first: within a run of `closed` every token sees those behind it too."""
    heads, count, dim = query.shape
    place = torch.arange(length, device=query.device)
    group = torch.full((length,), -1, device=query.device)
    for number, (start, end) in enumerate(closed):
        group[start:end] = number
    keys, values = keys[:, :length], values[:, :length]
    for start in range(0, count, ROWS):
        end = min(start + ROWS, count)
        own = slice(length - count + start, length - count + end)
        behind = place[own, None] - place
        hidden = (behind < 0) & ((group[own, None] != group) | (group[own, None] < 0))
        if look.window is not None:
            hidden |= behind >= look.window
        few = query[:, start:end].reshape(len(keys), -1, dim)
        scores = torch.bmm(few, keys.transpose(1, 2)).view(heads, end - start, length)
        if look.softcap is not None:
            scores = look.softcap * torch.tanh(scores / look.softcap)
        scores.masked_fill_(hidden, float("-inf"))
        weights = weigh(scores, look.sinks).view(len(keys), -1, length)
        out[start:end] = torch.bmm(weights, values).view(heads, end - start, -1).transpose(0, 1)


def weigh(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax of `scores` [..., heads, queries, keys]; a head's sink takes its share of the weight and gives nothing."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1].contiguous()


def hide(scores: Tensor, window: int | None) -> None:
    """`scores` [heads, queries, keys], the queries being the last of the keys: nobody looks ahead, or back beyond the window."""
    queries, keys = scores.shape[1:]
    if queries > 1:
        scores[:, :, keys - queries :].masked_fill_(ahead(queries, scores.device), float("-inf"))
    if window is not None and keys > window:
        place = torch.arange(keys, device=scores.device)
        behind = place[keys - queries :, None] - place
        scores.masked_fill_(behind >= window, float("-inf"))


@lru_cache(maxsize=4 * ROWS)
def ahead(count: int, device: torch.device) -> Tensor:
    """[count, count], true where the key is later than the query."""
    return torch.ones(count, count, dtype=torch.bool, device=device).triu(1)
