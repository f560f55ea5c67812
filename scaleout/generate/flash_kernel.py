"""Paged attention by torch's variable-length FlashAttention, which reads a paged cache where it lies. One call per layer and step.

Everything that differs between steps is in tensors of the caller's choosing, so a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from attrs import define
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, Look, Stretch, slots_of, zeros

Varlen = Callable[..., Any]
"""`torch.nn.attention.varlen.varlen_attn`, or something that computes the same."""

PAGE = 256
"""Block sizes must be multiples of this: FlashAttention 2 reads no smaller pages."""

LARGEST_HEAD = 256


@define(eq=False)
class FlashStep:
    """Where a step's tokens lie. `slots` int64 [tokens]; `starts` int32 [sequences + 1]; `lengths` int32 [sequences], the new tokens
    included; `tables` int32 [sequences, width]. `longest_query`, `longest`: upper bounds of counts and lengths.
    """

    slots: Tensor
    starts: Tensor
    lengths: Tensor
    tables: Tensor
    longest_query: int
    longest: int


def look_back(window: int | None) -> tuple[int, int]:
    """How the kernel spells causal: `window` positions with the query's own are `window - 1` before it, none after."""
    return (-1, 0) if window is None else (window - 1, 0)


class FlashKernel:
    """`caches[layer]` is a pair of [blocks, block_size, kv_heads, dim] tensors."""

    def __init__(self, shapes: Mapping[int, LayerShape], geometry: Geometry, varlen: Varlen) -> None:
        self.geometry, self._varlen = geometry, varlen
        blocks, size = geometry.blocks, geometry.block_size
        self.caches = {
            layer: (
                zeros((blocks, size, shape.kv_heads, shape.key_dim), geometry),
                zeros((blocks, size, shape.kv_heads, shape.value_dim), geometry),
            )
            for layer, shape in shapes.items()
        }
        self.step: FlashStep | None = None

    def prepare(self, stretches: Sequence[Stretch], padding: int = 0) -> None:
        assert not padding, "rows that no sequence owns are for recorded steps, which lay out their own"
        device, size = self.geometry.device, self.geometry.block_size
        counts = [stretch.count for stretch in stretches]
        lengths = [stretch.start + stretch.count for stretch in stretches]
        tables = np.zeros((len(stretches), -(-max(lengths) // size)), dtype=np.int32)
        for row, (stretch, length) in enumerate(zip(stretches, lengths, strict=True)):
            used = -(-length // size)
            tables[row, :used] = stretch.blocks[:used]
        self.step = FlashStep(
            slots=to_device(slots_of(stretches, self.geometry), device),
            starts=to_device(np.cumsum([0, *counts], dtype=np.int32), device),
            lengths=to_device(np.asarray(lengths, dtype=np.int32), device),
            tables=to_device(tables, device),
            longest_query=max(counts),
            longest=max(lengths),
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, look: Look) -> Tensor:
        assert self.step is not None
        step = self.step
        keys, values = self.caches[layer]
        keys.flatten(0, 1).index_copy_(0, step.slots, key.transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, step.slots, value.transpose(0, 1))
        result: Tensor = self._varlen(
            query.transpose(0, 1).contiguous(),
            keys,
            values,
            step.starts,
            None,
            step.longest_query,
            step.longest,
            scale=look.scale,
            window_size=look_back(look.window),
            enable_gqa=query.shape[0] != keys.shape[2],
            seqused_k=step.lengths,
            block_table=step.tables,
        )
        return result

    def close(self) -> None:
        self.caches.clear()


def to_device(numbers: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def find_varlen() -> Varlen | None:
    """Torch's own, if this version reads paged caches."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "block_table" in signature(varlen_attn).parameters else None


def suits(shapes: Mapping[int, LayerShape], dtype: torch.dtype) -> bool:
    """Whether FlashAttention can stand in for every layer: no soft caps or sinks, and heads as it knows them."""
    return dtype in (torch.float16, torch.bfloat16) and all(
        shape.plain and shape.key_dim == shape.value_dim <= LARGEST_HEAD and shape.key_dim % 8 == 0
        for shape in shapes.values()
    )


def agrees(varlen: Varlen, shape: LayerShape, per_kv: int, device: torch.device, dtype: torch.dtype) -> bool:
    """One small step by this kernel and by plain torch. What differs, or fails, is not used."""
    from scaleout.generate.gather_kernel import GatherKernel

    geometry = Geometry(4, PAGE, device, dtype)
    stretches = [Stretch(300, 1, [2, 0]), Stretch(0, 40, [3])]
    generator = torch.Generator().manual_seed(0)

    def numbers(heads: int, tokens: int, dim: int) -> Tensor:
        return torch.randn(heads, tokens, dim, generator=generator).to(device, dtype)

    earlier = (numbers(shape.kv_heads, 300, shape.key_dim), numbers(shape.kv_heads, 300, shape.value_dim))
    now = (numbers(shape.kv_heads, 41, shape.key_dim), numbers(shape.kv_heads, 41, shape.value_dim))
    ask_first, ask_now = (numbers(shape.kv_heads * per_kv, count, shape.key_dim) for count in (300, 41))
    answers = []
    for kernel in (FlashKernel({0: shape}, geometry, varlen), GatherKernel({0: shape}, geometry)):
        for window in (None, 100):
            look = Look(shape.key_dim**-0.5, window)
            kernel.prepare([Stretch(0, 300, [2, 0])])
            kernel.attend(0, ask_first, *earlier, look)
            kernel.prepare(stretches)
            answers.append(kernel.attend(0, ask_now, *now, look))
    return all(torch.allclose(answers[i], answers[i + 2], atol=2e-2, rtol=2e-2) for i in range(2))
