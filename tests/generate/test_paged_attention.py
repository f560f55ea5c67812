"""The paged, batched, chunked path gives each architecture the logits of a plain forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest
import torch
from asking import Answer, Source, ask_one, opened
from transformers import AutoModelForCausalLM

from scaleout.errors import ConfigError

pytestmark = pytest.mark.engine

TOLERANCE = 2e-4
"""Of log probabilities in float32: sums run in another order."""

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "phi3": {"sliding_window": 8, "original_max_position_embeddings": 256},
    "gpt_oss": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "rope_parameters": None,
    },
    "deepseek_v3": {
        **EXPERTS,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 24,
        "num_key_value_heads": 4,
    },
    "qwen3_moe": {**EXPERTS, "head_dim": 16, "num_experts": 4},
    "olmo2": {},
    "olmo3": {"sliding_window": 8},
    "cohere2": {"head_dim": 16, "sliding_window": 8},
    "granite": {},
    "smollm3": {},
    "glm4": {"head_dim": 16},
    "gpt_neox": {},
}


@pytest.mark.parametrize("block_size", [4, 3], ids=["compiled loops", "torch's operations"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_a_plain_forward(name: str, block_size: int, random_model: Callable[..., Source]) -> None:
    files = random_model(name, **ARCHITECTURES[name])
    random = Random(name)
    prompts = [[random.randrange(3, 96) for _ in range(length)] for length in (1, 30, 5, 18, 64)]
    answers = asyncio.run(answer_all(files, prompts, block_size))
    plain = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32, attn_implementation="eager")
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([prompt + answer.token_ids]), use_cache=False).logits[0]
        expected = torch.log_softmax(logits.float(), dim=-1)[:-1]
        assert (expected - everything_said(answer, files.vocab_size)).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"deepseek_v3"}))
def test_bfloat16_is_as_close_as_a_plain_forward(name: str, random_model: Callable[..., Source]) -> None:
    """Numbers are rounded elsewhere than by transformers: no farther from what float32 gives for the same weights, by far.

    Without DeepSeek's: which experts a token of it sees hangs on less than is rounded, and then it is another answer, there and here.
    """
    files = random_model(name, **ARCHITECTURES[name])
    random = Random(name)
    prompts = [[random.randrange(3, 96) for _ in range(length)] for length in (1, 30, 5, 18, 64)]
    answers = asyncio.run(answer_all(files, prompts, dtype="bfloat16"))
    plain = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.bfloat16, attn_implementation="eager")
    exact = deepcopy(plain).float()
    ours = theirs = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            rounded, truth = (
                torch.log_softmax(
                    model(torch.tensor([prompt + answer.token_ids]), use_cache=False).logits[0].float(), -1
                )
                for model in (plain, exact)
            )
        ours += float((everything_said(answer, files.vocab_size) - truth[:-1]).square().sum())
        theirs += float((rounded - truth)[:-1].square().sum())
    assert ours <= 4 * theirs  # twice as far


async def answer_all(
    files: Source, prompts: list[list[int]], block_size: int = 4, dtype: str = "float32"
) -> list[Answer]:
    """Few places, few tokens per step and small blocks: prompts are cut, wait, and share steps with decoding."""
    async with opened(
        files, max_num_seqs=3, max_num_batched_tokens=13, block_size=block_size, max_logprobs=-1, dtype=dtype
    ) as engine:
        params = {"max_tokens": 12, "ignore_eos": True, "logprobs": -1, "prompt_logprobs": -1}
        return await asyncio.gather(*[ask_one(engine, prompt, seed=i, **params) for i, prompt in enumerate(prompts)])


def everything_said(answer: Answer, vocab_size: int) -> torch.Tensor:
    """[positions, vocab]: what the engine says about every token after the first."""
    assert answer.prompt is not None
    assert answer.prompt.logprobs is not None
    rows = torch.empty(len(answer.prompt.logprobs) - 1 + len(answer.token_ids), vocab_size)
    for row, entry in enumerate(answer.prompt.logprobs[1:]):
        assert entry is not None
        rows[row] = torch.tensor([entry[id].logprob for id in range(vocab_size)])
    for row, position in enumerate(answer.logprobs, len(answer.prompt.logprobs) - 1):
        by_id = {shown.token_id: shown.logprob for shown in position.top}
        rows[row] = torch.tensor([by_id[id] for id in range(vocab_size)])
    return rows


@pytest.mark.parametrize(("name", "config"), [("llama4_text", {"head_dim": 16}), ("mamba", {"state_size": 4})])
def test_layers_that_cannot_be_paged_are_refused(
    name: str, config: dict[str, Any], random_model: Callable[..., Source]
) -> None:
    files = random_model(name, **config)

    async def start() -> None:
        async with opened(files):
            pass

    with pytest.raises(ConfigError, match=f"cannot run '{name}'"):
        asyncio.run(start())
