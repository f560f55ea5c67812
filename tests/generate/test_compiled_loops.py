"""Compiled loops give what torch's own operations give, for every shape, kind of number and number of threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from asking import Source, ask_one, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from scaleout.generate.compiled.looks import Backward, Glance
from scaleout.generate.compiled.loops import KINDS as KINDS_OF_LOOPS
from scaleout.generate.compiled.loops import open_loops
from scaleout.generate.compiled.plain import Plain

pytestmark = pytest.mark.engine

KINDS = (torch.bfloat16, torch.float32)
ROUNDING = {torch.bfloat16: 2e-2, torch.float32: 2e-5}
"""What may lie between two results of numbers about 1."""

sizes = st.integers(1, 70)
kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 1 << 20)


def some(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, exact: Tensor, times: int = 1) -> bool:
    """`times`: as far apart as one rounding allows."""
    room = times * ROUNDING[ours.dtype]
    return bool(torch.allclose(ours.float(), exact.float(), atol=room, rtol=room))


@pytest.mark.usefixtures("_threads")
@settings(deadline=None, max_examples=20)
@given(kinds, seeds, sizes, st.sampled_from([1, 8, 33, 576]))
def test_norms(kind: torch.dtype, seed: int, count: int, width: int) -> None:
    rows, weight, epsilon = some(seed, count, width).to(kind), some(seed + 1, width), 1e-2
    norm = torch.cat([torch.tensor([(width * epsilon) ** 0.5]), weight * width**0.5])
    exact = F.rms_norm(rows.float(), (width,), weight, epsilon)
    assert close(open_loops(kind).normalise(rows, norm), exact)


@pytest.mark.usefixtures("_threads")
@settings(deadline=None, max_examples=20)
@given(
    kinds,
    seeds,
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([2, 8, 24, 64]),
    st.booleans(),
)
def test_turning_and_keeping(
    kind: torch.dtype, seed: int, count: int, kv_heads: int, group: int, dim: int, normed: bool
) -> None:
    query_heads, blocks, size = kv_heads * group, 12, 4
    rows = some(seed, count, query_heads + 2 * kv_heads, dim).to(kind)
    angles = some(seed + 1, count, dim // 2).repeat(1, 2)
    cosines, sines = angles.cos().to(kind), angles.sin().to(kind)
    slots = torch.randperm(blocks * size, generator=torch.Generator().manual_seed(seed))[:count]
    keys, values = (torch.zeros(kv_heads, blocks, size, dim, dtype=kind) for _ in range(2))
    norms = torch.cat([torch.full((2, 1), 0.5), some(seed + 2, 2, dim)], dim=1) if normed else None

    asked = open_loops(kind).turn(rows.flatten(1), cosines, sines, slots, (keys, values), query_heads, norms)

    heads = rows.float()
    parts = [heads[:, :query_heads], heads[:, query_heads : query_heads + kv_heads]]
    if norms is not None:
        parts = [
            part / torch.hypot(part.norm(dim=-1, keepdim=True), norm[:1]) * norm[1:]
            for part, norm in zip(parts, norms, strict=True)
        ]
    query, key = (
        part * cosines[:, None].float()
        + torch.cat([-part[..., dim // 2 :], part[..., : dim // 2]], dim=-1) * sines[:, None].float()
        for part in parts
    )
    assert close(asked.transpose(0, 1), query)
    assert close(keys.flatten(1, 2)[:, slots].transpose(0, 1), key)
    assert torch.equal(values.flatten(1, 2)[:, slots].transpose(0, 1), rows[:, query_heads + kv_heads :])
    others = torch.ones(blocks * size, dtype=torch.bool)
    others[slots] = False
    assert not keys.flatten(1, 2)[:, others].any()
    assert not values.flatten(1, 2)[:, others].any()


def attend(query: Tensor, keys: Tensor, values: Tensor, glance: Glance) -> Tensor:
    """`query` [heads, rows, dim] of the last rows, `keys`, `values` [heads, keys, dim] → [heads, rows, dim], in float64."""
    rows, length = query.shape[1], keys.shape[1]
    scores = query.double() @ keys.double().transpose(1, 2)
    if limit := glance.limit.item():
        scores = limit * torch.tanh(scores / limit)
    back = torch.arange(length - rows, length)[:, None] - torch.arange(length)
    scores = scores.masked_fill((back < 0) | (back >= (glance.window or length)), float("-inf"))
    sinks = glance.sinks.double()[:, None, None].expand(-1, rows, 1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1] @ values.double()


def plain(kind: torch.dtype) -> Plain:
    eyes = open_loops(kind, tiled=False).eyes
    assert isinstance(eyes, Plain)
    return eyes


windows = st.one_of(st.none(), st.integers(1, 20))
limits = st.one_of(st.none(), st.floats(0.5, 50))


@pytest.mark.usefixtures("_threads")
@settings(deadline=None, max_examples=40)
@given(
    kinds,
    seeds,
    st.lists(st.integers(1, 90), min_size=1, max_size=9),
    *(
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([4, 32]),
        st.sampled_from([8, 24, 64]),
        st.sampled_from([8, 40]),
    ),
    *(windows, limits, st.booleans(), st.booleans()),
)
def test_looking_back(
    kind: torch.dtype,
    seed: int,
    lengths: list[int],
    kv_heads: int,
    group: int,
    size: int,
    dim: int,
    width: int,
    window: int | None,
    limit: float | None,
    sinking: bool,
    tiled: bool,
) -> None:
    """Sequences whose blocks lie anywhere; behind the rows that look back there are others."""
    heads, padding = kv_heads * group, 2
    counts = [-(-length // size) for length in lengths]
    places = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(seed)).tolist()
    ends = [sum(counts[:number]) for number in range(len(counts) + 1)]
    tables = [places[start:end] for start, end in pairwise(ends)]
    keys = some(seed, kv_heads, len(places), size, dim).to(kind)
    values = some(seed + 1, kv_heads, len(places), size, width).to(kind)
    queries = (some(seed + 2, heads, len(lengths) + padding, dim) * dim**-0.5).to(kind)
    glance = Glance.of(heads, window, limit, some(seed + 3, heads) if sinking else None)
    out = torch.full((len(lengths) + padding, heads, width), 7.0, dtype=kind)

    eyes = open_loops(kind, tiled=tiled and dim % 2 == width % 2 == 0).eyes
    eyes.look_back(Backward.of(tables, lengths), queries, (keys, values), glance, out)

    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        seen, told = (
            cache[:, table].flatten(1, 2)[:, :length].repeat_interleave(group, dim=0) for cache in (keys, values)
        )
        assert close(out[row], attend(queries[:, row : row + 1], seen, told, glance)[:, 0])
    assert (out[len(lengths) :] == 7).all()


@pytest.mark.usefixtures("_threads")
@settings(deadline=None, max_examples=40)
@given(
    kinds, seeds, st.integers(1, 4), sizes, st.integers(0, 90), st.sampled_from([8, 24]), windows, limits, st.booleans()
)
def test_weighing_a_prompt(
    kind: torch.dtype,
    seed: int,
    heads: int,
    rows: int,
    before: int,
    dim: int,
    window: int | None,
    limit: float | None,
    sinking: bool,
) -> None:
    query = (some(seed, heads, rows, dim) * dim**-0.5).to(kind)
    keys, values = (some(seed + number, heads, rows + before, dim).to(kind) for number in (1, 2))
    glance = Glance.of(heads, window, limit, some(seed + 3, heads) if sinking else None)
    loops = plain(kind)
    scores = query @ keys.transpose(1, 2)
    shares = loops.weigh(scores, glance)
    out = torch.empty(rows, heads, dim, dtype=kind)
    loops.hand_out(scores @ values, shares, out)
    # Here scores are rounded when they are made and when they are capped, and so are weights.
    assert close(out.transpose(0, 1), attend(query, keys, values, glance), times=4)


@pytest.mark.parametrize("kind", KINDS)
def test_large_and_lost_numbers(kind: torch.dtype) -> None:
    """Scores of any size give weights, and what is not a number stays that, for its own row alone."""
    scores = torch.tensor([[[300.0, -300.0, 0.0], [-3e38, -3e38, 0.0], [float("nan"), 0.0, 0.0]]]).to(kind)
    shares = plain(kind).weigh(scores, Glance.of(1, None, None, None))
    weights = scores.float() * shares[..., None]
    assert weights[0, 0].tolist() == pytest.approx([1, 0, 0])
    assert weights[0, 1].tolist() == pytest.approx([0.5, 0.5, 0])
    assert weights[0, 2].isnan().any()


def test_what_numba_does_not_know_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a release that types our functions otherwise: the engine then runs without them."""
    monkeypatch.setitem(KINDS_OF_LOOPS, torch.float16, "a half")
    with pytest.raises(ValueError, match="numba cannot compile"):
        open_loops(torch.float16)


@pytest.mark.parametrize(("kind", "size"), [(torch.float16, 32), (torch.bfloat16, 6)])
def test_what_cannot_be_compiled_says_so(kind: torch.dtype, size: int) -> None:
    with pytest.raises(ValueError, match=f"{kind} in blocks of {size}"):
        open_loops(kind, size)


def test_an_engine_runs_without_a_compiler(
    random_model: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files, prompt = random_model("llama"), list(range(3, 60))
    with_loops = asyncio.run(answer(files, prompt))
    monkeypatch.setitem(sys.modules, "scaleout.generate.compiled.loops", None)
    with caplog.at_level("INFO"):
        assert asyncio.run(answer(files, prompt)) == with_loops
    assert "Attention without compiled loops" in caplog.text


async def answer(files: Source, prompt: list[int]) -> list[int]:
    async with opened(files, dtype="float32") as engine:
        return list((await ask_one(engine, prompt, temperature=0, max_tokens=20, ignore_eos=True)).token_ids)


def test_loops_are_compiled_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """numba looks for a folder beside the source, then in the user's own; a container may have neither."""
    source = tmp_path / "source.py"
    source.write_text(WITHOUT_A_FOLDER)
    told = subprocess.run([sys.executable, str(source)], capture_output=True, text=True, check=False, timeout=120)
    assert told.stdout.strip() == "compiled", told.stderr


WITHOUT_A_FOLDER = """
from numba.core import caching

caching.CacheImpl._locator_classes = []

from scaleout.generate.compiled.norm import compile_normalise
from scaleout.generate.compiled.numbers import BITS
from scaleout.generate.compiled.team import find_team

find_team()
print("compiled" if compile_normalise(BITS) else "no address")
"""
