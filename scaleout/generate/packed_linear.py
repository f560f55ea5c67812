"""Linear layers whose weights lie as the CPU's matrix kernels like them, so that no call has to rearrange them first.

Layers that read the same input run as one: a call costs some 25 µs before the first multiplication, which is what a small model's
layer takes altogether.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from scaleout.generate.compiled.tiles import Tiles

PACKABLE = (torch.bfloat16, torch.float32)

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which transformers' models keep layers that read one input, in the order they are called."""


def round_up(rows: int) -> int:
    """As many rows as a step should compute. Each number of rows has kernels of its own: a millisecond and half a megabyte apiece."""
    step = 1 if rows <= 16 else 4 if rows <= 64 else 16
    return -(-rows // step) * step


KERNELS = 128
"""Those of a few steps, of which each has some six for its number of rows, and as many as it has pieces of prompts for attention."""


def bound_kernels() -> None:
    """How many kernels stay in memory, each of half a megabyte and more: in oneDNN's cache, and in that which torch has in front of it.

    Both would keep 1,024, and read the environment when they are first used. What a user has set there holds.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


product = torch.ops.mkldnn._linear_pointwise


class PackedLinear(nn.Module):
    """One or more `nn.Linear` as one, on oneDNN's own weight layout. Same numbers up to the order of sums."""

    def __init__(
        self, linears: Sequence[nn.Linear], scales: Sequence[float] | None = None, tiles: Tiles | None = None
    ) -> None:
        """`scales`: what the result of each is to be multiplied by. `tiles`: for the product, where they can."""
        super().__init__()
        scales = scales or [1.0] * len(linears)
        weight = torch.cat([linear.weight.detach() * scale for linear, scale in zip(linears, scales, strict=True)])
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = None
        if linears[0].bias is not None:
            self.bias = torch.cat([linear.bias.detach() * scale for linear, scale in zip(linears, scales, strict=True)])
        self.tiles = tiles
        self.panels = None if tiles is None else tiles.panels(self.packed, weight, self.bias)

    def forward(self, rows: Tensor, added: Tensor | None = None) -> Tensor:
        """`rows` [..., in] → [..., out], plus `added`, of that shape."""
        if self.panels is not None and self.tiles is not None:
            flat = rows.reshape(-1, self.panels.width).contiguous()
            return self.tiles.multiply(flat, self.panels, added).view(*rows.shape[:-1], -1)
        if added is not None:
            result: Tensor = product.binary(rows, added, self.packed, self.bias, "add")
        else:
            result = product(rows, self.packed, self.bias, "none", [], "")
        return result


def gated(rows: Tensor, gate: PackedLinear, up: PackedLinear, activation: tuple[str, str]) -> Tensor:
    """`activation` of the one product times the other; `rows` [rows, in] → [rows, out]."""
    tiles = gate.tiles
    if gate.panels is not None and up.panels is not None and tiles is not None:
        return tiles.multiply(rows, gate.panels, None, activation, up.panels)
    opened = product(rows, gate.packed, gate.bias, activation[0], [], activation[1])
    result: Tensor = product.binary(rows, opened, up.packed, up.bias, "mul")
    return result


class Sibling(nn.Module):
    """The part of a shared layer that used to be a layer by itself. The first call with an input computes it for all of them."""

    def __init__(self, shared: SharedLinear, place: int) -> None:
        super().__init__()
        self.shared, self.place = shared, place

    def forward(self, rows: Tensor) -> Tensor:
        return self.shared.part(rows, self.place)


class SharedLinear:
    """Not a module: it would be counted once per sibling."""

    def __init__(self, linears: Sequence[nn.Linear], tiles: Tiles | None = None) -> None:
        self.linear = PackedLinear(linears, tiles=tiles)
        self.sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, rows: Tensor, place: int) -> Tensor:
        """`rows` [..., in] → [..., sizes[place]]."""
        if rows is not self._input:
            self._input, self._parts = rows, self.linear(rows).split(self.sizes, dim=-1)
        part = self._parts[place]
        if place == len(self.sizes) - 1:
            self._input, self._parts = None, ()
        return part


def pack_linears(model: nn.Module, tiles: Tiles | None = None) -> int:
    """Replaces every linear layer of a CPU model, by `tiles` where they can multiply; returns how many there were. None where torch
    was built without oneDNN.
    """
    if not can_pack():
        return 0
    count = 0
    with torch.no_grad():
        for parent in list(model.modules()):
            linears = {name: child for name, child in parent.named_children() if _packable(child)}
            count += len(linears)
            for names in SIBLINGS:
                group = [linears[name] for name in names if name in linears]
                if len(group) == len(names) and alike(group):
                    shared = SharedLinear(group, tiles)
                    for place, name in enumerate(names):
                        setattr(parent, name, Sibling(shared, place))
                        del linears[name]
            for name, linear in linears.items():
                setattr(parent, name, PackedLinear([linear], tiles=tiles))
    return count


def onednn_multiplies(model: nn.Module) -> bool:
    """Whether some product of the model is oneDNN's: see `round_up`."""
    for module in model.modules():
        linear = module.shared.linear if isinstance(module, Sibling) else module
        if isinstance(linear, nn.Linear) or (isinstance(linear, PackedLinear) and linear.panels is None):
            return True
    return False


def can_pack() -> bool:
    return bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _packable(module: nn.Module) -> TypeGuard[nn.Linear]:
    return type(module) is nn.Linear and module.weight.dtype in PACKABLE


def alike(linears: Sequence[nn.Linear]) -> bool:
    """Whether they can run as one."""
    first = linears[0]
    return all(one.in_features == first.in_features and (one.bias is None) == (first.bias is None) for one in linears)
