"""The torch engine on SmolLM2: its ids are those of transformers, alone and in company, and every parameter does what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import gguf
import pytest
import torch
from asking import Source, ask, ask_one, opened
from attrs import evolve
from transformers import AutoModelForCausalLM, PreTrainedModel

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.generate.attention import PagedAttention
from scaleout.generate.engine import Engine
from scaleout.generate.options import EngineOptions
from scaleout.generate.weights import close_model, open_model

pytestmark = pytest.mark.engine

RANDOM = Random(0)
PROMPTS = [[RANDOM.randrange(100, 40000) for _ in range(length)] for length in (3, 40, 17, 70, 64) * 10]
FEW = PROMPTS[:5]
PROMPT = PROMPTS[2]
LONGEST = 16
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}

Greedy = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def plain(smollm2: Source) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(smollm2.folder, dtype=torch.float32)
    return model


@pytest.fixture(scope="module")
def greedy(plain: PreTrainedModel) -> Greedy:
    """What `transformers.generate` says: prompt, number of ids → ids."""

    def continue_(prompt: list[int], count: int) -> list[int]:
        ids = plain.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        return list(ids[0, len(prompt) :].tolist())

    return continue_


@pytest.fixture(scope="module")
def expected(plain: PreTrainedModel) -> list[list[int]]:
    """What `transformers.generate` says to each of PROMPTS. Those of one length are asked together, which needs no padding."""
    said: dict[int, list[int]] = {}
    for length in {len(prompt) for prompt in PROMPTS}:
        places = [place for place, prompt in enumerate(PROMPTS) if len(prompt) == length]
        ids = plain.generate(
            torch.tensor([PROMPTS[place] for place in places]),
            max_new_tokens=GREEDY["max_tokens"],
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        said |= zip(places, ids[:, length:].tolist(), strict=True)
    return [said[place] for place in range(len(PROMPTS))]


async def test_greedy_ids_are_those_of_transformers(smollm2_engine: Engine, expected: list[list[int]]) -> None:
    together = await asyncio.gather(*[ask_one(smollm2_engine, prompt, **GREEDY) for prompt in PROMPTS])
    assert [answer.token_ids for answer in together] == expected
    alone = [await ask_one(smollm2_engine, prompt, **GREEDY) for prompt in PROMPTS]
    assert [answer.token_ids for answer in alone] == expected
    for prompt, answer in zip(PROMPTS, alone, strict=True):
        assert answer.prompt is not None
        full_blocks = (len(prompt) - 1) // 32 * 32
        assert answer.prompt.cached_tokens == full_blocks, "the second time, they are there already"
    assert {answer.finish_reason for answer in alone} == {"length"}


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16},
        {"max_num_seqs": 2},
        {"enable_prefix_caching": False},
        {"block_size": 4, "max_model_len": 96, "kv_cache_memory": 56 * 4 * 46080, "max_num_batched_tokens": 48},
    ],
    ids=["chunked", "queued", "no prefix reuse", "preempted"],
)
async def test_no_schedule_changes_greedy_ids(
    options: dict[str, Any], smollm2: Source, expected: list[list[int]]
) -> None:
    async with opened(smollm2, dtype="float32", **options) as engine:
        answers = await asyncio.gather(*[ask_one(engine, prompt, **GREEDY) for prompt in PROMPTS])
        assert [answer.token_ids for answer in answers] == expected
        stats = engine.stats()
        assert (stats.preemptions > 0) == ("kv_cache_memory" in options)
        assert stats.blocks_free == stats.blocks_total


async def test_logprobs_are_those_of_the_model(smollm2_engine: Engine, plain: PreTrainedModel) -> None:
    answer = await ask_one(smollm2_engine, PROMPT, temperature=0.7, seed=3, max_tokens=4, logprobs=3, prompt_logprobs=2)
    with torch.no_grad():
        logits = plain(input_ids=torch.tensor([PROMPT + answer.token_ids])).logits[0]
    expected = torch.log_softmax(logits, dim=-1)
    for place, (token, shown) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True), len(PROMPT) - 1):
        row = expected[place]
        assert shown.sampled.token_id == token
        assert shown.sampled.logprob == pytest.approx(row[token].item(), abs=1e-3)
        assert shown.sampled.rank == (row > row[token]).sum().item() + 1
        best = [id for id in row.topk(3).indices.tolist() if id != token]
        assert [entry.token_id for entry in shown.top] == [token, *best][:3]
    assert answer.prompt is not None
    assert answer.prompt.logprobs is not None
    assert answer.prompt.logprobs[0] is None
    for place, entry in enumerate(answer.prompt.logprobs[1:]):
        assert entry is not None
        row, actual = expected[place], PROMPT[place + 1]
        assert list(entry) == [actual, *(id for id in row.topk(2).indices.tolist() if id != actual)]
        assert entry[actual].logprob == pytest.approx(row[actual].item(), abs=1e-3)


async def test_bfloat16_is_as_close_as_its_eight_bits_allow(smollm2: Source, plain: PreTrainedModel) -> None:
    """Our sums run in another order than anybody else's; what they lose against float32 is what the number type loses."""
    async with opened(smollm2, dtype="bfloat16", max_model_len=256) as engine:
        answer = await ask_one(engine, PROMPTS[4], temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with torch.no_grad():
        expected = torch.log_softmax(plain(input_ids=torch.tensor([PROMPTS[4]])).logits[0], dim=-1)
    assert answer.prompt is not None
    assert answer.prompt.logprobs is not None
    differences = [
        abs(entry[id].logprob - expected[place, id].item())
        for place, (entry, id) in enumerate(zip(answer.prompt.logprobs[1:], PROMPTS[4][1:], strict=True))
        if entry is not None
    ]
    assert sum(differences) / len(differences) < 0.1


@pytest.mark.parametrize(("count", "shown"), [(0, 1), (1, 1), (5, 5), (-1, 49152)])
async def test_as_many_logprobs_as_asked_for(count: int, shown: int, smollm2_engine: Engine) -> None:
    answer = await ask_one(smollm2_engine, PROMPT, seed=1, max_tokens=1, logprobs=count)
    assert len(answer.logprobs[0].top) == shown
    assert answer.logprobs[0].top[0] == answer.logprobs[0].sampled


async def test_logprobs_of_chosen_ids(smollm2_engine: Engine) -> None:
    answer = await ask_one(smollm2_engine, PROMPT, seed=1, max_tokens=2, logprob_token_ids=[5, 6])
    assert [[entry.token_id for entry in shown.top] for shown in answer.logprobs] == [
        [id, 5, 6] for id in answer.token_ids
    ]


async def test_a_seed_decides_whatever_else_runs(smollm2_engine: Engine) -> None:
    params: dict[str, Any] = {"seed": 7, "max_tokens": 12, "top_p": 0.9, "top_k": 50}
    alone = await ask(smollm2_engine, PROMPT, n=3, **params)
    others = [ask_one(smollm2_engine, prompt, max_tokens=20) for prompt in FEW]
    crowd = await asyncio.gather(ask(smollm2_engine, PROMPT, n=3, **params), *others)
    assert [answer.token_ids for answer in crowd[0]] == [answer.token_ids for answer in alone]
    assert len({tuple(answer.token_ids) for answer in alone}) == 3, "each choice has its own seed"
    assert (await ask_one(smollm2_engine, PROMPT, **{**params, "seed": 8})).token_ids == alone[1].token_ids


async def test_without_a_seed_answers_differ(smollm2_engine: Engine) -> None:
    answers = await asyncio.gather(*[ask_one(smollm2_engine, PROMPT, max_tokens=8) for _ in range(4)])
    assert len({tuple(answer.token_ids) for answer in answers}) == 4


async def test_choices_share_their_prompt(smollm2: Source) -> None:
    async with opened(smollm2, enable_prefix_caching=False, block_size=16) as engine:
        answers = await ask(engine, PROMPTS[3], n=3, seed=1, max_tokens=4, prompt_logprobs=0)
        assert engine.stats().cached_prompt_tokens == 2 * 64
        assert {answer.prompt.cached_tokens for answer in answers if answer.prompt} == {0}
        assert all(answer.prompt and answer.prompt.logprobs and len(answer.prompt.logprobs) == 70 for answer in answers)
        again = await ask_one(engine, PROMPTS[3], seed=1, max_tokens=1)
        assert again.prompt is not None
        assert again.prompt.cached_tokens == 0, "without prefix reuse another request starts from nothing"


async def test_a_choice_that_is_over_leaves_its_siblings_as_they_are(smollm2_engine: Engine) -> None:
    """Its place and its blocks are free at once; what the others say is what they would have said."""
    params: dict[str, Any] = {"n": 3, "top_k": 1, "max_tokens": 60, "ignore_eos": True}
    alone = [answer.token_ids for answer in await ask(smollm2_engine, PROMPTS[1], **params)]
    request = GenerateRequest("r", PROMPTS[1], stream=True, sampling_params=SamplingParams(**params))
    said: list[list[int]] = [[], [], []]
    running: set[int] = set()
    before = smollm2_engine.stats().generated_tokens
    async for delta in smollm2_engine.generate(request, lambda index: index != 2 and len(said[index]) > 4 * index):
        said[delta.index] += delta.token_ids
        running.add(smollm2_engine.stats().running)
    assert said[2] == alone[2]
    assert [len(one) < 60 for one in said] == [True, True, False]
    assert [one == whole[: len(one)] for one, whole in zip(said, alone, strict=True)] == [True] * 3
    assert smollm2_engine.stats().generated_tokens - before < 60 + 2 * 15
    assert 1 in running
    assert smollm2_engine.stats().blocks_free == smollm2_engine.stats().blocks_total


async def test_a_salt_separates_prefixes(smollm2_engine: Engine) -> None:
    prompt = PROMPTS[4][::-1]
    cached = []
    for salt in ("a", "a", "b", None):
        answer = await ask_one(smollm2_engine, prompt, max_tokens=1, request={"cache_salt": salt})
        assert answer.prompt is not None
        cached.append(answer.prompt.cached_tokens)
    assert cached == [0, 32, 0, 0]
    fresh = await ask_one(smollm2_engine, prompt, max_tokens=1, skip_reading_prefix_cache=True)
    assert fresh.prompt is not None
    assert fresh.prompt.cached_tokens == 0


async def test_what_ends_an_answer(smollm2: Source, smollm2_engine: Engine, greedy: Greedy) -> None:
    said = greedy(PROMPT, 12)
    stop = said[4]
    first = said.index(stop) + 1
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    stopped = await ask_one(smollm2_engine, PROMPT, stop_token_ids=[stop], **params)
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == (said[:first], "stop", stop)
    later = await ask_one(smollm2_engine, PROMPT, stop_token_ids=[stop], min_tokens=first + 2, **params)
    assert later.token_ids[: first - 1] == said[: first - 1]
    assert stop not in later.token_ids[: first + 1]
    async with opened(smollm2, dtype="float32") as engine:
        engine.eos_token_ids = (stop,)  # type: ignore[misc]
        ended = await ask_one(engine, PROMPT, **{**params, "ignore_eos": False}, stop_token_ids=[stop])
        assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == (said[:first], "stop", None)
        ignored = await ask_one(engine, PROMPT, **params)
        assert (ignored.token_ids, ignored.finish_reason) == (said, "length")


async def test_the_context_ends_an_answer(smollm2: Source) -> None:
    async with opened(smollm2, max_model_len=40) as engine:
        for limit in (None, 1000):
            answer = await ask_one(engine, PROMPT, max_tokens=limit, ignore_eos=True)
            assert (len(answer.token_ids), answer.finish_reason) == (40 - len(PROMPT), "length")


async def test_deltas_come_at_the_interval(smollm2_engine: Engine) -> None:
    for interval in (1, 4):
        answer = await ask_one(smollm2_engine, PROMPT, max_tokens=14, ignore_eos=True, seed=1, stream_interval=interval)
        # A reader that comes late finds deltas joined.
        ends = set(accumulate(len(delta.token_ids) for delta in answer.deltas))
        assert ends <= {*range(1, 14, interval), 14}, "the first id is never held back"
        assert 14 in ends
    whole = await ask_one(smollm2_engine, PROMPT, max_tokens=14, ignore_eos=True, seed=1, request={"stream": False})
    assert [len(delta.token_ids) for delta in whole.deltas] == [14]
    assert whole.token_ids == answer.token_ids


async def test_penalties_and_biases_change_what_is_said(smollm2_engine: Engine) -> None:
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": LONGEST, "ignore_eos": True}
    plain = (await ask_one(smollm2_engine, PROMPT, **params)).token_ids
    assert len(set(plain)) < LONGEST, "a greedy small model repeats itself"
    for penalty in ({"repetition_penalty": 10.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        penalised = (await ask_one(smollm2_engine, PROMPT, **params, **penalty)).token_ids
        assert len(set(penalised)) > len(set(plain))
    favoured = await ask_one(smollm2_engine, PROMPT, **params, logit_bias={77: 1000.0})
    assert set(favoured.token_ids) == {77}
    allowed = await ask_one(smollm2_engine, PROMPT, **{**params, "temperature": 1.0}, allowed_token_ids=[3, 4, 5])
    assert set(allowed.token_ids) <= {3, 4, 5}


def test_weights_from_gguf(smollm2: Source, smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that `gguf` itself reads from the file; its metadata are read once."""
    read = []
    reader = gguf.GGUFReader
    monkeypatch.setattr(gguf, "GGUFReader", lambda *given: read.append(given) or reader(*given))
    asking = gguf.GGUFReader
    files = evolve(smollm2, folder=None, gguf=smollm2_gguf)
    model = open_model(files, EngineOptions(dtype="float32"), PagedAttention(), torch.device("cpu"))
    close_model(model)
    assert len(read) == 1
    assert gguf.GGUFReader is asking, "nobody else's reader remembers"
    stored = {tensor.name: tensor for tensor in reader(smollm2_gguf).tensors}
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.7.mlp.down_proj", "blk.7.ffn_down"),
        ("model.layers.29.self_attn.v_proj", "blk.29.attn_v"),
    ):
        tensor = stored[f"{theirs}.weight"]
        weight = model.get_submodule(ours).weight
        assert torch.equal(weight, torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)))
