"""Paged attention from torch's everyday operations: runs on any device, with sliding windows, soft caps and sinks.

The tokens that decode look back together, in groups of similar length; a stretch of a prompt looks back by itself, a few rows at a
time. Blocks are copied together before each look: that costs little, and what follows are plain batched products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, Look, Stretch, slots_of, zeros
from scaleout.generate.gather_plan import DecodeGroup, PromptSpan, decode_groups, prompt_spans

ROWS = 128
"""Prompt rows that look back at once: their scores should stay in a core's cache."""


class GatherKernel:
    """`caches[layer]`: see `open_caches`."""

    def __init__(self, shapes: Mapping[int, LayerShape], geometry: Geometry) -> None:
        self.geometry = geometry
        self.caches = open_caches(shapes, geometry)
        self._key_space, self._value_space = Space(), Space()
        self._triangle = torch.full((ROWS, ROWS), float("-inf"), dtype=geometry.dtype, device=geometry.device).triu_(1)
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
        store(keys, values, self._slots, key, value)
        if look.scale != 1:
            query = query * look.scale
        seen = [self._look_back(group, query, keys, values, look) for group in self._groups]
        if len(seen) == 1 and len(seen[0]) == query.shape[1]:
            return seen[0]
        out = query.new_empty(query.shape[1], query.shape[0], values.shape[3])
        for group, answer in zip(self._groups, seen, strict=True):
            out[group.start : group.end] = answer
        for span in self._spans:
            first, rows = span.view(len(keys), None if span.closed else look.window)
            found, told = self._key_space.gather(keys, rows), self._value_space.gather(values, rows)
            asked, answer = query[:, span.start : span.end], out[span.start : span.end]
            if span.closed:
                read_closed(asked, found, told, span.length, span.closed, look, answer)
            else:
                visible = span.length - first
                how = look.window, look.softcap, look.sinks
                read(asked, found, told, visible, *how, self._triangle, ROWS, answer)
        if self._padding:
            out[len(out) - self._padding :] = 0
        return out

    def _look_back(self, group: DecodeGroup, query: Tensor, keys: Tensor, values: Tensor, look: Look) -> Tensor:
        rows, hidden = group.view(len(keys), look.window)
        spaces = self._key_space.room(keys, rows), self._value_space.room(values, rows)
        if len(self._groups) > 1 or self._padding or self._spans:
            query = query[:, group.start : group.end]
        return decode(query, keys, values, rows, *spaces, hidden, look.softcap, look.sinks)

    def close(self) -> None:
        self.caches.clear()


def open_caches(shapes: Mapping[int, LayerShape], geometry: Geometry) -> dict[int, tuple[Tensor, Tensor]]:
    """Keys and values of each layer, [kv_heads, blocks, block_size, dim]: the blocks of a head lie together."""
    room = geometry.blocks, geometry.block_size
    return {
        layer: (
            zeros((shape.kv_heads, *room, shape.key_dim), geometry),
            zeros((shape.kv_heads, *room, shape.value_dim), geometry),
        )
        for layer, shape in shapes.items()
    }


class Space:
    """Where gathered blocks lie until the next gathering. One place for all layers: fresh memory would have to be mapped each time."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def room(self, cache: Tensor, rows: Tensor) -> Tensor:
        """For the blocks `rows` of `cache` [kv_heads, blocks, block_size, dim]: [rows, block_size * dim]."""
        count, width = len(rows), cache.stride(1)
        if self._numbers.numel() < count * width:
            self._numbers = cache.new_empty(count * width)
        return self._numbers[: count * width].view(count, width)

    def gather(self, cache: Tensor, rows: Tensor) -> Tensor:
        """The blocks `rows`, counted over all heads, as [kv_heads, tokens, dim]."""
        return gather(cache, rows, self.room(cache, rows), len(cache))


def gather(cache: Tensor, rows: Tensor, space: Tensor, heads: int) -> Tensor:
    """`cache` [kv_heads, blocks, block_size, dim] → the blocks `rows`, counted over all heads, in `space`, as [heads, tokens, dim]."""
    torch.index_select(cache.view(-1, space.size(1)), 0, rows, out=space)
    return space.view(heads, -1, cache.size(3))


def store(keys: Tensor, values: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """`key` and `value` [kv_heads, tokens, dim] to their places `slots` in the cache."""
    keys.flatten(1, 2).index_copy_(1, slots, key)
    values.flatten(1, 2).index_copy_(1, slots, value)


def decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    key_space: Tensor,
    value_space: Tensor,
    hidden: Tensor | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`query` [heads, sequences, dim], scaled, one per sequence; `rows`: the blocks that each sees; `hidden`, bool
    [sequences, 1, 1, tokens]: those that it does not → [sequences, heads, value_dim].
    """
    heads, count, dim = query.size(0), query.size(1), query.size(2)
    pairs = count * keys.size(0)
    turned = gather(keys, rows, key_space, pairs).transpose(1, 2)
    scores = torch.bmm(query.transpose(0, 1).reshape(pairs, -1, dim), turned)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    by_head = scores.view(count, heads, 1, -1)
    told = gather(values, rows, value_space, pairs)
    if hidden is not None:
        by_head.masked_fill_(hidden, float("-inf"))
        # There may lie what another sequence left behind, and nothing times NaN is NaN.
        told.view(count, -1, told.size(1), told.size(2)).masked_fill_(hidden.transpose(2, 3), 0)
    weights = weigh(by_head, sinks).view(scores.shape)
    return torch.bmm(weights, told).view(count, heads, -1)


def read(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: int,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    triangle: Tensor,
    at_once: int,
    out: Tensor,
) -> None:
    """`query` [heads, rows, dim], scaled, the last of `length` tokens; `keys`, `values` [kv_heads, tokens, dim], with room behind;
    `triangle` [at_once, at_once] is added to the scores among the rows themselves → `out` [rows, heads, value_dim].
    """
    heads, count, dim = query.size(0), query.size(1), query.size(2)
    kv_heads = keys.size(0)
    for start in range(0, count, at_once):
        end = min(start + at_once, count)
        few = end - start
        last = length - count + end
        first = 0 if window is None else max(0, last - few - window + 1)
        asked = query[:, start:end].reshape(kv_heads, -1, dim)
        turned = keys[:, first:last].contiguous().transpose(1, 2)
        scores = torch.bmm(asked, turned).view(heads, few, last - first)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if few > 1:
            scores[:, :, last - first - few :].add_(triangle[:few, :few])
        if window is not None and last - first > window:
            place = torch.arange(last - first, device=scores.device)
            scores.masked_fill_(place[last - first - few :].unsqueeze(1) - place >= window, float("-inf"))
        weights = weigh(scores, sinks).view(kv_heads, -1, last - first)
        out[start:end].copy_(torch.bmm(weights, values[:, first:last]).view(heads, few, -1).transpose(0, 1))


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
    """Softmax of `scores` [..., heads, queries, keys], in their place; a head's sink takes its share of the weight and gives nothing."""
    if sinks is None:
        return torch.softmax(scores, dim=-1, out=scores)
    column = torch.zeros_like(scores[..., :1]) + sinks.to(scores.dtype).view(-1, 1, 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1].contiguous()
