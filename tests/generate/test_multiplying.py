"""Rows times packed weights: what float64 gives, rounded once, whatever comes behind the product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from scaleout.generate.compiled.loops import open_loops
from scaleout.generate.compiled.tile import can_tile
from scaleout.generate.compiled.tiles import lies_in_panels
from scaleout.generate.packed_linear import PackedLinear, gated, pack_linears

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not can_tile(), reason="this processor has no dot product of bfloat16, or a unit for matrices"),
]

FUNCTIONS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("swish", ""): F.silu,
    ("gelu", "tanh"): partial(F.gelu, approximate="tanh"),
    ("relu", ""): F.relu,
    ("gelu", "none"): F.gelu,
}

rows = st.one_of(st.integers(1, 70), st.integers(71, 300))
widths = st.sampled_from([2, 30, 64, 322, 576, 1026, 2304])
columns = st.sampled_from([1, 63, 64, 65, 192, 300])
seeds = st.integers(0, 1 << 20)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def linear(seed: int, width: int, out: int, bias: bool) -> nn.Linear:
    made = nn.Linear(width, out, bias=bias, dtype=torch.bfloat16)
    made.weight.data = (numbers(seed, out, width).float() / width**0.5).bfloat16()
    if bias:
        made.bias.data = numbers(seed + 1, out)
    return made


def exactly(given: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(given.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


def rounded_once(ours: Tensor, exact: Tensor, times: float = 1.0) -> bool:
    """Within half a step of bfloat16, and what float32 sums lose; `times` of both."""
    room = times * (exact.abs() * 2**-8 + 1e-5)
    return ours.dtype == torch.bfloat16 and bool(((ours.double() - exact).abs() <= room).all())


@pytest.mark.usefixtures("_threads")
@torch.inference_mode()
@settings(deadline=None, max_examples=60)
@given(seeds, rows, widths, columns, st.booleans(), st.booleans())
def test_a_product_and_what_is_added(seed: int, count: int, width: int, out: int, bias: bool, adds: bool) -> None:
    layer, inputs = linear(seed, width, out, bias), numbers(seed + 2, count, width)
    added = numbers(seed + 3, count, out) if adds else None
    packed = PackedLinear([layer], tiles=open_loops(torch.bfloat16).tiles)
    assert (packed.panels is not None) == lies_in_panels(packed.packed, layer.weight)
    exact = exactly(inputs, layer) + (0 if added is None else added.double())
    assert rounded_once(packed(inputs, added), exact)


@pytest.mark.usefixtures("_threads")
@torch.inference_mode()
@settings(deadline=None, max_examples=60)
@given(seeds, rows, widths, columns, st.booleans(), st.sampled_from(sorted(FUNCTIONS)))
def test_a_gated_product(seed: int, count: int, width: int, out: int, bias: bool, name: tuple[str, str]) -> None:
    tiles = open_loops(torch.bfloat16).tiles
    layers = [linear(seed + 10 * place, width, out, bias) for place in range(2)]
    inputs = numbers(seed + 2, count, width)
    gate, up = (PackedLinear([layer], tiles=tiles) for layer in layers)
    exact = FUNCTIONS[name](exactly(inputs, layers[0])) * exactly(inputs, layers[1])
    # oneDNN rounds the gate on its way.
    assert rounded_once(gated(inputs, gate, up, name), exact, 1 if gate.panels else 3)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 32, 96, 97, 512])
@torch.inference_mode()
def test_the_shapes_of_a_model_lie_in_panels(count: int) -> None:
    """What oneDNN packs differently would only be slower, and nobody would notice."""
    tiles = open_loops(torch.bfloat16).tiles
    for out, width in ((960, 576), (576, 576), (1536, 576), (576, 1536), (49152, 576), (2048, 8192)):
        layer = nn.Linear(width, out, bias=False, dtype=torch.bfloat16)
        packed, inputs = PackedLinear([layer], tiles=tiles), numbers(count, count, width)
        assert packed.panels is not None
        assert rounded_once(packed(inputs), exactly(inputs, layer))


@torch.inference_mode()
def test_rows_do_not_depend_on_their_neighbours() -> None:
    """The same sums in the same order, however many rows there are and on however many threads."""
    packed = PackedLinear([linear(0, 2304, 192, True)], tiles=open_loops(torch.bfloat16).tiles)
    inputs = numbers(5, 128, 2304)
    alone = torch.cat([packed(inputs[row : row + 1]) for row in range(len(inputs))])
    for count in (2, 7, 31, 97):
        assert torch.equal(packed(inputs[:count]), alone[:count])


@torch.inference_mode()
def test_nan_and_infinity_stay_in_their_rows() -> None:
    packed = PackedLinear([linear(0, 576, 192, False)], tiles=open_loops(torch.bfloat16).tiles)
    inputs = numbers(5, 9, 576)
    clean = packed(inputs)
    inputs[3, 7], inputs[5, 0] = float("nan"), float("inf")
    told = packed(inputs)
    assert told[3].isnan().all()
    assert not told[5].isfinite().any()
    others = [row for row in range(9) if row not in (3, 5)]
    assert torch.equal(told[others], clean[others])


@torch.inference_mode()
def test_inputs_of_any_shape_and_stride() -> None:
    layer = linear(0, 576, 192, True)
    packed = PackedLinear([layer], tiles=open_loops(torch.bfloat16).tiles)
    wide = numbers(1, 2, 3, 1152)
    inputs = wide[..., ::2]
    assert packed(inputs).shape == (2, 3, 192)
    assert rounded_once(packed(inputs), exactly(inputs, layer))


@torch.inference_mode()
def test_layers_that_share_their_input() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (linear(place, 576, 64 * (place + 1), False) for place in range(3))

    block, inputs = Block(), numbers(1, 4, 576)
    exact = [exactly(inputs, layer) for layer in (block.q_proj, block.k_proj, block.v_proj)]
    assert pack_linears(block, open_loops(torch.bfloat16).tiles) == 3
    told = [layer(inputs) for layer in (block.q_proj, block.k_proj, block.v_proj)]
    assert all(rounded_once(ours, truth) for ours, truth in zip(told, exact, strict=True))


def test_other_numbers_are_left_to_onednn() -> None:
    layer = nn.Linear(64, 64)
    assert PackedLinear([layer], tiles=open_loops(torch.float32).tiles).panels is None
