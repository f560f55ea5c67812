"""Attention over a paged KV cache, in the shape transformers calls its attention functions. Knows layers and blocks, no sequences.

The tokens of a step lie one after another in a batch of one. Keys and values of all of them are written to the cache first. Then the
tokens that decode look back together, in groups of similar length; a stretch of a prompt looks back by itself, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from scaleout.errors import ConfigError
from scaleout.generate.plan import DecodeGroup, Plan, PromptSpan

ROWS = 64
"""Prompt rows that look back at once: their scores should stay in a core's cache."""


@frozen
class LayerShape:
    kv_heads: int
    key_dim: int
    value_dim: int


@define(eq=False)
class PagedAttention:
    """One per model. `caches[layer]` is a pair of [kv_heads, blocks, block_size, dim] tensors.

    Without a plan it only notes what each layer asks for, in `shapes`: the way to learn a model's KV layout without knowing its
    architecture.
    """

    shapes: dict[int, LayerShape] = field(factory=dict)
    caches: dict[int, tuple[Tensor, Tensor]] = field(factory=dict)
    plan: Plan | None = None

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """`query` [1, heads, tokens, key_dim], `key`/`value` [1, kv_heads, tokens, dim] → [1, tokens, heads, value_dim]."""
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        if self.plan is None:
            check_arguments(attention_mask, others)
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
        keys, values = self.caches[layer]
        keys.flatten(1, 2).index_copy_(1, self.plan.slots, key[0])
        values.flatten(1, 2).index_copy_(1, self.plan.slots, value[0])
        _, heads, tokens, dim = query.shape
        look = _Look(keys, values, heads // keys.shape[0], sliding_window, softcap, s_aux)
        query = query[0] * (scaling if scaling is not None else dim**-0.5)
        out = query.new_empty(tokens, heads, values.shape[3])
        for group in self.plan.groups:
            out[group.start : group.end] = look.decode(query[:, group.start : group.end], group)
        for span in self.plan.spans:
            look.read(query[:, span.start : span.end], span, out[span.start : span.end])
        return out.unsqueeze(0), None


@frozen
class _Look:
    """One layer's cache and how its queries look at it. `per_kv` query heads share a KV head; queries are scaled already."""

    keys: Tensor
    values: Tensor
    per_kv: int
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    def decode(self, query: Tensor, group: DecodeGroup) -> Tensor:
        """`query` [heads, sequences, dim], one per sequence → [sequences, heads, value_dim]."""
        heads, count, dim = query.shape
        kv_heads = self.keys.shape[0]
        rows, hidden = group.view(kv_heads, self.window)
        keys = gather(self.keys, rows).view(count, kv_heads, -1, dim)
        values = gather(self.values, rows).view(count, kv_heads, keys.shape[2], -1)
        grouped = query.transpose(0, 1).reshape(count, kv_heads, self.per_kv, dim)
        scores = torch.matmul(grouped, keys.transpose(2, 3))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if hidden is not None:
            scores = scores.add_(hidden)
        weights = self.weigh(scores.view(count, heads, 1, -1)).view(count, kv_heads, self.per_kv, -1)
        return torch.matmul(weights, values).view(count, heads, -1)

    def read(self, query: Tensor, span: PromptSpan, out: Tensor) -> None:
        """`query` [heads, rows, dim], the last rows of a sequence → `out` [rows, heads, value_dim]."""
        heads, count, dim = query.shape
        kv_heads = self.keys.shape[0]
        first_key, rows = span.view(kv_heads, self.window)
        keys = gather(self.keys, rows).view(kv_heads, -1, dim).transpose(1, 2)
        values = gather(self.values, rows).view(kv_heads, keys.shape[2], -1)
        for start in range(0, count, ROWS):
            end = min(start + ROWS, count)
            last = span.length - count + end - first_key
            first = 0 if self.window is None else max(0, last - (end - start) - self.window + 1)
            few = query[:, start:end].reshape(kv_heads, self.per_kv * (end - start), dim)
            scores = torch.matmul(few, keys[:, :, first:last]).view(heads, end - start, last - first)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            hide(scores, self.window)
            weights = self.weigh(scores).view(kv_heads, -1, last - first)
            out[start:end] = torch.matmul(weights, values[:, first:last]).view(heads, end - start, -1).transpose(0, 1)

    def weigh(self, scores: Tensor) -> Tensor:
        """Softmax of `scores` [..., heads, queries, keys]; a head's sink takes its share of the weight and gives nothing."""
        if self.sinks is None:
            return torch.softmax(scores, dim=-1)
        sinks = self.sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]


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


def check_arguments(mask: Tensor | None, others: Mapping[str, Any]) -> None:
    """An argument that we would ignore could change the answer: better no answer than a wrong one."""
    unknown = [name for name, value in others.items() if isinstance(value, Tensor) and name != "position_ids"]
    if mask is not None or unknown:
        raise ConfigError(
            f"The model's attention needs {unknown or ['attention_mask']}, which paged attention cannot give it"
        )
