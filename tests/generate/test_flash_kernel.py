"""The FlashAttention path without its device: a plain stand-in computes what torch's kernel promises, from the same arguments.

What is shown is everything around the kernel: layout, tables, windows, padding, and the fixed places of recorded steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from asking import Answer, Source, ask_one
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, PagedAttention
from scaleout.generate.backends.torch import record_graphs
from scaleout.generate.decode_graphs import buckets
from scaleout.generate.engine import EngineLoop, open_engine
from scaleout.generate.flash_kernel import FlashKernel, agrees, suits
from scaleout.generate.kv_cache import BlockPool
from scaleout.generate.model_runner import ModelRunner, probe
from scaleout.generate.options import EngineLimits, EngineOptions, EngineStats
from scaleout.generate.sampler import Sampler
from scaleout.generate.scheduler import Scheduler
from scaleout.generate.weights import open_model

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")


def plain_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """What `varlen_attn` documents, one sequence at a time."""
    assert cu_seq_k is None
    assert window_size[1] == 0
    out = torch.empty(query.shape[0], query.shape[1], value.shape[3], dtype=query.dtype)
    starts = cu_seq_q.tolist()
    for row, length in enumerate(seqused_k.tolist()):
        begin, end = starts[row], starts[row + 1]
        assert end - begin <= max_q
        assert length <= max_k
        table = block_table[row].long()
        keys = key[table].flatten(0, 1)[:length].transpose(0, 1)
        values = value[table].flatten(0, 1)[:length].transpose(0, 1)
        share = query.shape[1] // keys.shape[0]
        assert enable_gqa == (share > 1)
        keys, values = keys.repeat_interleave(share, 0), values.repeat_interleave(share, 0)
        scores = query[begin:end].transpose(0, 1) @ keys.transpose(1, 2) * scale
        behind = torch.arange(length - end + begin, length)[:, None] - torch.arange(length)
        hidden = (behind < 0) | ((behind > window_size[0]) & (window_size[0] >= 0))
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[begin:end] = (weights @ values).transpose(0, 1)
    return out


def flash_engine(files: Source, block_size: int, graphs: bool) -> EngineLoop:
    options = EngineOptions(dtype="float32", max_num_seqs=5, max_num_batched_tokens=40)
    attention = PagedAttention()
    model = open_model(files, options, attention, CPU)
    probe(model, attention, CPU)
    kernel = FlashKernel(attention.shapes, Geometry(41, block_size, CPU, torch.float32), plain_varlen)
    attention.kernel = kernel
    limits = EngineLimits(files.vocab_size, files.max_model_len, 5)
    runner = ModelRunner(model, kernel, Sampler(), CPU)
    runner.graphs = record_graphs(runner, kernel, limits) if graphs else None
    pool = BlockPool(40, block_size)
    scheduler = Scheduler(pool, max_num_seqs=5, max_num_batched_tokens=40, policy="fcfs", stats=EngineStats())
    return EngineLoop(runner, scheduler, limits, options, files.eos_token_ids)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("name", "config"), [("llama", {}), ("gemma3_text", {"head_dim": 16, "sliding_window": 8}), ("gpt_neox", {})]
)
def test_ids_are_those_of_the_other_kernel(
    name: str, config: dict[str, Any], graphs: bool, random_model: Callable[..., Source]
) -> None:
    files = random_model(name, **config)
    random = Random(1)
    prompts = [[random.randrange(3, 96) for _ in range(length)] for length in (1, 7, 40, 70, 12, 5)]

    async def answer_all(engine: Any) -> list[Answer]:
        params: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "logprobs": 2}
        answers = await asyncio.gather(
            *[ask_one(engine, prompt, max_tokens=10 + i, **params) for i, prompt in enumerate(prompts)]
        )
        await engine.close()
        return list(answers)

    plain = asyncio.run(answer_all(open_engine(files, EngineOptions(dtype="float32", max_num_seqs=5, device="cpu"))))
    flash = asyncio.run(answer_all(flash_engine(files, 16, graphs)))
    for one, other in zip(plain, flash, strict=True):
        assert one.token_ids == other.token_ids
        for here, there in zip(one.logprobs, other.logprobs, strict=True):
            assert here.sampled.logprob == pytest.approx(there.sampled.logprob, abs=1e-4)


def test_a_kernel_is_used_when_it_agrees_and_not_otherwise() -> None:
    shape = LayerShape(2, 16, 16)
    assert agrees(plain_varlen, shape, 3, CPU, torch.float32)
    assert not agrees(lambda *args, **kwargs: plain_varlen(*args, **kwargs) * 1.1, shape, 3, CPU, torch.float32)
    assert not agrees(
        lambda *args, **kwargs: plain_varlen(*args, **{**kwargs, "window_size": (-1, 0)}), shape, 3, CPU, torch.float32
    )


def test_what_flash_attention_cannot_do_is_known() -> None:
    assert suits({0: LayerShape(2, 64, 64)}, torch.bfloat16)
    assert not suits({0: LayerShape(2, 64, 64)}, torch.float32)
    assert not suits({0: LayerShape(2, 64, 64), 1: LayerShape(2, 64, 64, plain=False)}, torch.bfloat16)
    assert not suits({0: LayerShape(4, 192, 128)}, torch.bfloat16)
    assert not suits({0: LayerShape(1, 512, 512)}, torch.bfloat16)


@pytest.mark.parametrize("most", [1, 3, 8, 64, 100, 256])
def test_every_batch_has_a_recorded_size(most: int) -> None:
    sizes = buckets(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
