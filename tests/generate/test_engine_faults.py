"""A failing step takes its own requests along and nobody else's; a dead engine tells everybody; nothing hangs and no block leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from random import Random
from threading import Thread
from typing import Any

import pytest
from asking import Answer, Source, ask, ask_one, opened

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.errors import BadRequest, EngineFailed
from scaleout.generate.engine import Engine

pytestmark = pytest.mark.engine

POISON = 13
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def files(random_model: Callable[..., Source]) -> Source:
    return random_model("llama", max_position_embeddings=20_000)


@contextmanager
def poisoned(engine: Engine, error: BaseException) -> Iterator[None]:
    """The real model, with a fault in it: a step whose input holds POISON raises."""
    model = engine._runner.model  # type: ignore[attr-defined]

    def raise_if_poisoned(_module: Any, _args: Any, inputs: dict[str, Any]) -> None:
        if (inputs["input_ids"] == POISON).any():
            raise error

    handle = model.register_forward_pre_hook(raise_if_poisoned, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


async def test_a_failed_step_fails_its_requests_alone(files: Source) -> None:
    async with opened(files, max_num_seqs=1) as engine:
        with poisoned(engine, RuntimeError("the device hiccuped")):
            bad = asyncio.create_task(ask(engine, [*PROMPT, POISON]))
            good = asyncio.create_task(
                ask_one(engine, PROMPT, max_tokens=5, logit_bias={POISON: -100.0}, ignore_eos=True)
            )
            with pytest.raises(EngineFailed) as failure:
                await bad
            assert failure.value.status == 500
            assert "hiccuped" not in failure.value.message, "what went wrong inside is for the log"
            assert (await good).finish_reason == "length"
        engine.health()
        stats = engine.stats()
        assert (stats.failed_steps, stats.finished["error"]) == (1, 1)
        assert stats.blocks_free == stats.blocks_total
        assert (await ask_one(engine, [*PROMPT, POISON], max_tokens=1)).token_ids


async def test_a_dead_loop_tells_everybody(files: Source) -> None:
    async with opened(files, max_num_seqs=5) as engine:
        with poisoned(engine, SystemExit("the device is gone")):
            endless: dict[str, Any] = {"n": 2, "max_tokens": None, "ignore_eos": True, "logit_bias": {POISON: -100.0}}
            running = [asyncio.create_task(ask(engine, PROMPT, **endless)) for _ in range(2)]
            bad = asyncio.create_task(ask(engine, [*PROMPT, POISON]))
            waiting = asyncio.create_task(ask(engine, PROMPT, **endless))
            outcomes = await asyncio.gather(*running, bad, waiting, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, EngineFailed)
            assert outcome.status == 503
        with pytest.raises(EngineFailed):
            engine.health()
        with pytest.raises(EngineFailed):
            await ask(engine, PROMPT)


async def test_submitting_while_the_loop_dies_never_hangs(files: Source) -> None:
    """Many threads with event loops of their own submit at the moment of death."""
    async with opened(files) as engine:
        outcomes: list[BaseException | list[Answer]] = []

        def client(seed: int) -> None:
            async def submit() -> None:
                for turn in range(20):
                    poison = [POISON] if seed == 0 and turn == 10 else []
                    outcomes.append(await ask(engine, [*PROMPT, *poison], max_tokens=2, logit_bias={POISON: -100.0}))

            try:
                asyncio.run(submit())
            except EngineFailed as error:
                outcomes.append(error)

        with poisoned(engine, SystemExit("gone")):
            threads = [Thread(target=client, args=(seed,)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join, 60)
        assert not any(thread.is_alive() for thread in threads)
        assert sum(isinstance(outcome, EngineFailed) for outcome in outcomes) >= 1


async def test_a_client_whose_event_loop_is_gone_frees_its_work(files: Source) -> None:
    async with opened(files) as engine:

        def client() -> None:
            loop = asyncio.new_event_loop()
            request = GenerateRequest(
                "r", PROMPT, stream=True, sampling_params=SamplingParams(max_tokens=None, ignore_eos=True)
            )
            deltas = engine.generate(request)
            loop.run_until_complete(anext(deltas))
            loop.close()

        await asyncio.to_thread(client)
        async with asyncio.timeout(20):
            while engine.stats().finished.get("abort") != 1:  # noqa: ASYNC110 - the client's own loop could tell, and is gone
                await asyncio.sleep(0.01)
        assert (await ask_one(engine, PROMPT, max_tokens=3, ignore_eos=True)).finish_reason == "length"


async def test_a_rough_crowd_leaves_nothing_behind(files: Source) -> None:
    """Cancels, aborts, disconnects, bad ids, prompts that are too long, n > 1 and too little memory, all at once."""
    random = Random(5)
    async with opened(
        files,
        max_num_seqs=6,
        max_num_batched_tokens=40,
        block_size=4,
        max_model_len=80,
        kv_cache_memory=30 * 4 * 4 * 2 * 16 * 4,
    ) as engine:
        seen: set[str | None] = set()

        async def client(number: int) -> None:
            length = random.choice([1, 4, 9, 30, 79, 80, 200])
            prompt = [random.randrange(3, 96) for _ in range(length)]
            if random.random() < 0.1:
                prompt[0] = 5000
            params = SamplingParams(
                n=random.randint(1, 4),
                max_tokens=random.choice([1, 10, None]),
                ignore_eos=True,
                logprobs=random.choice([None, 2]),
            )
            patience = random.choice([0, 1, 3, 1000])
            try:
                async with aclosing(
                    engine.generate(GenerateRequest(str(number), prompt, sampling_params=params, stream=True))
                ) as deltas:
                    async for delta in deltas:
                        seen.add(delta.finish_reason)
                        patience -= 1
                        if patience == 0:
                            return
                        if random.random() < 0.02:
                            await engine.abort([str(number)])
            except BadRequest:
                seen.add("refused")

        tasks = [asyncio.create_task(client(number)) for number in range(120)]
        for task in random.sample(tasks, 20):
            asyncio.get_running_loop().call_later(random.random(), task.cancel)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        assert {"length", "abort", "refused"} <= seen
        async with asyncio.timeout(20):
            while engine.stats().running + engine.stats().waiting:  # noqa: ASYNC110 - aborts of the last clients are still on their way
                await asyncio.sleep(0.01)
        stats = engine.stats()
        assert stats.blocks_free == stats.blocks_total == 30
        assert stats.preemptions > 0
        assert stats.failed_steps == 0
