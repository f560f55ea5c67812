"""Our attention in transformers' models: the call they make, handed to a kernel that knows a paged KV cache. Knows no sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from mmap import mmap
from typing import Any, Protocol

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from scaleout.errors import ConfigError


@frozen
class LayerShape:
    """What a layer keeps per token. `plain`: see `Look`."""

    kv_heads: int
    key_dim: int
    value_dim: int
    plain: bool = True


@frozen
class Geometry:
    """The cache's shape, for all layers: `blocks` blocks of `block_size` tokens, of which the last is nobody's."""

    blocks: int
    block_size: int
    device: torch.device
    dtype: torch.dtype


@frozen
class Stretch:
    """Tokens `start` to `start + count` of one sequence, computed in one step. `blocks`: all of the sequence's, in order.

    `closed`: runs of places, within what is computed by the end of the step, whose tokens see each other whatever their order.
    """

    start: int
    count: int
    blocks: Sequence[int]
    closed: Sequence[tuple[int, int]] = ()

    @property
    def alone(self) -> bool:
        """One token that looks back at everything before it."""
        return self.count == 1 and not self.closed


@frozen
class Look:
    """How the queries of a layer look at its keys. `window`: how many positions back, their own included."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """The scores go straight into a softmax over the visible keys."""
        return self.softcap is None and self.sinks is None


class Kernel(Protocol):
    """Writes keys and values to the cache and attends to it. One step at a time."""

    def prepare(self, stretches: Sequence[Stretch], padding: int = 0) -> None:
        """The step's tokens lie one stretch after another, those of a single token first, the shortest sequence in front.

        `padding` tokens behind them belong to nobody: they write to the last block, and what they read is of no interest.
        """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, look: Look) -> Tensor:
        """`query` [heads, tokens, key_dim], `key`/`value` [kv_heads, tokens, dim] → [tokens, heads, value_dim]."""

    def close(self) -> None: ...


@define(eq=False)
class PagedAttention:
    """One per model, registered as its attention function.

    Without a kernel it only notes what each layer asks for, in `shapes` and `looks`: the way to learn a model's KV layout without
    knowing its architecture.

    `narrows`: the last layer goes on with the tokens `kept` alone, int64 [rows], where those are given; the others only leave their
    keys and values.
    """

    shapes: dict[int, LayerShape] = field(factory=dict)
    looks: dict[int, Look] = field(factory=dict)
    kernel: Kernel | None = None
    narrows: bool = False
    kept: Tensor | None = None

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
        scale = scaling if scaling is not None else query.shape[3] ** -0.5
        look = Look(scale, sliding_window, softcap, s_aux)
        if self.kernel is None:
            check_arguments(attention_mask, others)
            self.looks[layer] = look
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3], look.plain)
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
        return self.kernel.attend(layer, query[0], key[0], value[0], look).unsqueeze(0), None


def check_arguments(mask: Tensor | None, others: Mapping[str, Any]) -> None:
    """An argument that we would ignore could change the answer: better no answer than a wrong one."""
    unknown = [name for name, value in others.items() if isinstance(value, Tensor) and name != "position_ids"]
    if mask is not None or unknown:
        raise ConfigError(
            f"The model's attention needs {unknown or ['attention_mask']}, which paged attention cannot give it"
        )


def slots_of(stretches: Sequence[Stretch], geometry: Geometry, padding: int = 0) -> np.ndarray:
    """The cache place of each token, int64: block number * block size + place in the block."""
    block_size = geometry.block_size
    slots = []
    for stretch in stretches:
        where = np.arange(stretch.start, stretch.start + stretch.count)
        slots.append(np.asarray(stretch.blocks, dtype=np.int64)[where // block_size] * block_size + where % block_size)
    return np.concatenate([*slots, np.full(padding, (geometry.blocks - 1) * block_size)])


def zeros(shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    """A zeroed cache. On the CPU its pages cost nothing until they are written."""
    if geometry.device.type != "cpu":
        return torch.zeros(shape, dtype=geometry.dtype, device=geometry.device)
    # Not by numpy: it asks for huge pages, of which each layer and head would zero one for its first token.
    pages = mmap(-1, prod(shape) * geometry.dtype.itemsize)
    return torch.frombuffer(pages, dtype=geometry.dtype).view(shape)
