"""Attention over a paged KV cache, in the shape transformers calls its attention functions. Knows layers and blocks, no sequences.

The tokens of a step lie one after another in a batch of one. Each span of them continues one sequence: its keys and values are
written to the cache first, then its queries look at everything that the sequence has there, within the layer's window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, softmax

from scaleout.errors import ConfigError


@frozen
class Span:
    """`count` queries from row `start` of the step; the last one is the sequence's token `length - 1`. `table`: its blocks, int64."""

    start: int
    count: int
    length: int
    table: Tensor


@frozen
class Plan:
    """Where a step's tokens go. `slots`: one cache row per token, int64 [tokens]."""

    slots: Tensor
    spans: list[Span]


@frozen
class LayerShape:
    kv_heads: int
    key_dim: int
    value_dim: int


@define(eq=False)
class PagedAttention:
    """One per model. `caches[layer]` is a pair of [blocks, block_size, kv_heads, dim] tensors.

    Without caches it only notes what each layer asks for, in `shapes`: the way to learn a model's KV layout without knowing its
    architecture.
    """

    block_size: int
    shapes: dict[int, LayerShape]
    caches: dict[int, tuple[Tensor, Tensor]]
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
            self._check(attention_mask, others)
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
        keys, values = self.caches[layer]
        keys.flatten(0, 1).index_copy_(0, self.plan.slots, key[0].transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, self.plan.slots, value[0].transpose(0, 1))
        scale = scaling if scaling is not None else key.shape[3] ** -0.5
        out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
        for span in self.plan.spans:
            rows = slice(span.start, span.start + span.count)
            first = (
                0
                if sliding_window is None
                else max(0, span.length - span.count - sliding_window + 1) // self.block_size
            )
            table = span.table[first:]
            seen = span.length - first * self.block_size
            k = keys[table].flatten(0, 1)[:seen].transpose(0, 1)
            v = values[table].flatten(0, 1)[:seen].transpose(0, 1)
            out[rows] = attend(query[0, :, rows], k, v, scale, sliding_window, softcap, s_aux).transpose(0, 1)
        return out.unsqueeze(0), None

    @staticmethod
    def _check(mask: Tensor | None, others: Mapping[str, Any]) -> None:
        """An argument that we would ignore could change the answer: better no answer than a wrong one."""
        unknown = [name for name, value in others.items() if isinstance(value, Tensor) and name != "position_ids"]
        if mask is not None or unknown:
            raise ConfigError(
                f"The model's attention needs {unknown or ['attention_mask']}, which paged attention cannot give it"
            )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`query` [heads, queries, dim] are the last of `key`/`value` [kv_heads, keys, dim] → [heads, queries, value_dim]."""
    heads, queries, _ = query.shape
    kv_heads, keys, _ = key.shape
    mask = None if queries == 1 and (window is None or keys <= window) else visible(queries, keys, window, query.device)
    if softcap is None and sinks is None:
        if queries == 1 and mask is None:
            grouped = query.view(kv_heads, heads // kv_heads, -1)
            return scaled_dot_product_attention(grouped[None], key[None], value[None], scale=scale)[0].reshape(
                heads, 1, -1
            )
        whole = mask is not None and window is None and queries == keys
        return scaled_dot_product_attention(
            query[None], key[None], value[None], None if whole else mask, is_causal=whole, scale=scale, enable_gqa=True
        )[0]
    grouped = query.reshape(kv_heads, heads // kv_heads * queries, -1)
    scores = torch.matmul(grouped, key.transpose(1, 2)).view(heads, queries, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).view(heads, 1, 1).expand(heads, queries, 1)], dim=-1)
    weights = softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)[..., :keys]
    return torch.matmul(weights.view(kv_heads, -1, keys), value).view(heads, queries, -1)


def visible(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """[queries, keys], true where a query may look: not ahead, and no further back than `window` positions, its own included."""
    behind = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    seen = behind >= 0
    return seen if window is None else seen & (behind < window)
