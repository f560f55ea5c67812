"""Prompts and sequences that decode, in one step, look at their blocks as plain attention would, for every shape and kind of number."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from scaleout.generate.attention import Geometry, Kernel, LayerShape, Look, Stretch
from scaleout.generate.compiled.loops import open_loops
from scaleout.generate.compiled.tile import can_tile
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.loop_kernel import LoopKernel

pytestmark = pytest.mark.engine

ROUNDING = {torch.bfloat16: 4e-2, torch.float32: 2e-5}
"""What may lie between two results of numbers about 1."""


def some(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attend(query: Tensor, keys: Tensor, values: Tensor, look: Look) -> Tensor:
    """`query` [heads, rows, dim] of the last rows, `keys`, `values` [heads, keys, dim] → [rows, heads, dim], in float64."""
    rows, length = query.shape[1], keys.shape[1]
    scores = query.double() @ keys.double().transpose(1, 2)
    if look.softcap:
        scores = look.softcap * torch.tanh(scores / look.softcap)
    back = torch.arange(length - rows, length)[:, None] - torch.arange(length)
    scores = scores.masked_fill((back < 0) | (back >= (look.window or length)), float("-inf"))
    sinks = torch.full((len(query),), float("-inf")) if look.sinks is None else look.sinks
    weights = torch.softmax(torch.cat([scores, sinks.double()[:, None, None].expand(-1, rows, 1)], dim=-1), dim=-1)
    return (weights[..., :-1] @ values.double()).transpose(0, 1)


spans = st.tuples(st.one_of(st.just(0), st.integers(0, 200)), st.one_of(st.integers(2, 13), st.integers(60, 150)))
"""Tokens that were there before, and those of this step."""


@pytest.mark.usefixtures("_threads")
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([torch.bfloat16, torch.float32]),
    st.sampled_from(["tiles", "loops", "torch"]),
    st.integers(0, 1 << 20),
    st.lists(st.integers(0, 150), max_size=3),
    st.lists(spans, min_size=1, max_size=4),
    *(st.integers(1, 3), st.integers(1, 8), st.sampled_from([4, 32, 48])),
    *(st.sampled_from([2, 5, 24, 64, 80, 256]), st.sampled_from([1, 40, 64, 72, 256])),
    *(st.one_of(st.none(), st.integers(1, 200)), st.one_of(st.none(), st.floats(0.5, 50)), st.booleans()),
)
@example(torch.bfloat16, "tiles", 0, [], [(0, 512)], 3, 3, 32, 64, 64, None, None, False)
@example(torch.bfloat16, "tiles", 0, [1000, 3], [(512, 510)], 1, 9, 32, 64, 64, 128, None, True)
def test_a_step_of_prompts_and_decoding(
    kind: torch.dtype,
    how: str,
    seed: int,
    alone: list[int],
    prompts: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    size: int,
    dim: int,
    width: int,
    window: int | None,
    limit: float | None,
    sinking: bool,
) -> None:
    lengths = [before + count for before, count in [*((before, 1) for before in sorted(alone)), *prompts]]
    counts = [1] * len(alone) + [count for _, count in prompts]
    blocks = [-(-length // size) for length in lengths]
    places = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(seed)).tolist()
    tables = [places[start:end] for start, end in pairwise(accumulate(blocks, initial=0))]
    heads, padding = kv_heads * group, 2
    look = Look(1.0, window, limit, some(seed + 3, heads) if sinking else None)
    shapes, geometry = {0: LayerShape(kv_heads, dim, width)}, Geometry(len(places) + 1, size, torch.device("cpu"), kind)
    kernel: Kernel = GatherKernel(shapes, geometry)
    if how != "torch":
        kernel = LoopKernel(shapes, geometry, open_loops(kind, tiled=how == "tiles" and dim % 2 == width % 2 == 0))
    told: tuple[list[Tensor], list[Tensor]] = ([], [])
    for place, (table, length, count) in enumerate(zip(tables, lengths, counts, strict=True)):
        for number, cache in enumerate(kernel.caches[0]):
            told[number].append(some(seed + 10 * place + number, kv_heads, length, cache.shape[3]).to(kind))
            # What others left behind a sequence's last token lies there still.
            own = torch.full((kv_heads, len(table) * size, cache.shape[3]), float("nan"), dtype=kind)
            own[:, : length - count] = told[number][-1][:, : length - count]
            cache[:, table] = own.view(kv_heads, len(table), size, -1)
    queries = (some(seed + 2, heads, sum(counts) + padding, dim) * dim**-0.5).to(kind)
    new_keys, new_values = (
        torch.cat(
            [one[:, -count:] for one, count in zip(kept, counts, strict=True)] + [kept[0][:, :1]] * padding, dim=1
        )
        for kept in told
    )
    kernel.prepare(
        [Stretch(length - count, count, table) for length, count, table in zip(lengths, counts, tables, strict=True)],
        padding,
    )

    out = kernel.attend(0, queries, new_keys, new_values, look)

    for place, (start, end) in enumerate(pairwise(accumulate(counts, initial=0))):
        seen = (kept[place].repeat_interleave(group, dim=0) for kept in told)
        exact = attend(queries[:, start:end], *seen, look)
        torch.testing.assert_close(out[start:end].double(), exact, atol=ROUNDING[kind], rtol=ROUNDING[kind])
    assert not out[sum(counts) :].any()


def test_this_processor_works_by_tiles() -> None:
    """A processor that is not taken for what it is would only be slower, and nobody would notice."""
    assert (open_loops(torch.bfloat16).tiles is not None) == can_tile()
    assert open_loops(torch.float32).tiles is None
