"""What every backend keeps to. A new one is added to BACKENDS and passes all of this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_asyncio
from asking import Source, ask, ask_one, opened

from scaleout.core import Features, GenerateRequest, MediaFeature, SamplingParams
from scaleout.errors import BadRequest, EngineFailed, Overloaded, RequestError
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions

MARKS = {
    "torch": [pytest.mark.engine],
    # It warns of what it uses of torch, and leaves sockets for the interpreter to close.
    "vllm": [
        pytest.mark.engine,
        *(
            pytest.mark.filterwarnings(f"ignore::{warning}")
            for warning in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
        ),
    ],
}
BACKENDS = ["echo", *(pytest.param(name, marks=marks) for name, marks in MARKS.items() if find_spec(name))]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [5, 6, 7, 8, 9]
VOCAB = 96


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(backend: str, request: pytest.FixtureRequest) -> Source:
    if backend == "echo":
        return Source("echo", None, {}, 100_000, VOCAB, [2])
    random_model: Callable[..., Source] = request.getfixturevalue("random_model")
    return random_model("llama", max_position_embeddings=20_000, hidden_size=128)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(backend: str, files: Source) -> AsyncIterator[Engine]:
    async with opened(files, backend=backend, max_num_seqs=8, max_queued=4) as engine:
        yield engine


def endless(request_id: str = "endless", **params: Any) -> GenerateRequest:
    """Runs until somebody ends it."""
    return GenerateRequest(
        request_id, PROMPT, stream=True, sampling_params=SamplingParams(max_tokens=None, ignore_eos=True, **params)
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - an engine has no event for every number it counts
            await asyncio.sleep(0.005)


async def test_it_says_what_it_is(engine: Engine, files: Source) -> None:
    assert engine.vocab_size == VOCAB
    assert engine.max_model_len == files.max_model_len
    assert tuple(engine.eos_token_ids) == (2,)
    engine.health()


async def test_each_choice_is_whole(engine: Engine) -> None:
    answers = await ask(engine, PROMPT, n=3, max_tokens=7, seed=1, ignore_eos=True)
    for answer in answers:
        assert len(answer.token_ids) == 7
        assert (answer.finish_reason, answer.stop_reason) == ("length", None)
        assert answer.prompt is not None
        assert list(answer.prompt.token_ids or ()) == PROMPT
        assert answer.prompt.cached_tokens is not None


async def test_the_context_is_the_limit(backend: str, files: Source) -> None:
    async with opened(files, backend=backend, max_model_len=32) as engine:
        for limit in (None, 1000):
            answer = await ask_one(engine, PROMPT, max_tokens=limit, ignore_eos=True)
            assert (len(answer.token_ids), answer.finish_reason) == (27, "length")
        for length, text in (
            (32, r"plus the number of requested output tokens \(at least 1\)"),
            (33, "is longer than the maximum model"),
        ):
            with pytest.raises(BadRequest, match=rf"The decoder prompt \(length {length}\) .*{text}"):
                await ask(engine, [5] * length)


async def test_a_stop_id_ends_a_choice_and_is_part_of_it(engine: Engine) -> None:
    free = await ask_one(engine, PROMPT, max_tokens=8, seed=3, ignore_eos=True)
    stop = free.token_ids[3]
    first = free.token_ids.index(stop) + 1
    answer = await ask_one(engine, PROMPT, max_tokens=8, seed=3, ignore_eos=True, stop_token_ids=[stop])
    assert answer.token_ids == free.token_ids[:first]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


async def test_the_end_of_text_has_no_stop_reason(backend: str, files: Source) -> None:
    args = {"eos_after_prompt": True} if backend == "echo" else {}
    async with opened(files, backend=backend, engine_args=args) as engine:
        answer = await ask_one(engine, PROMPT, max_tokens=5000, seed=1, stop_token_ids=[2])
        assert answer.token_ids[-1] == 2
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)


@pytest.mark.parametrize(("count", "shown"), [(None, None), (0, 1), (1, 1), (4, 4)])
async def test_logprobs_come_with_their_ids(count: int | None, shown: int | None, engine: Engine) -> None:
    answer = await ask_one(engine, PROMPT, max_tokens=3, seed=1, logprobs=count, ignore_eos=True)
    if shown is None:
        assert all(delta.logprobs is None for delta in answer.deltas)
        return
    assert [position.sampled.token_id for position in answer.logprobs] == answer.token_ids
    assert {len(position.top) for position in answer.logprobs} == {shown}
    assert all(position.top[0] == position.sampled for position in answer.logprobs)


async def test_prompt_logprobs_come_once(engine: Engine) -> None:
    answer = await ask_one(engine, PROMPT, max_tokens=2, prompt_logprobs=1, seed=1)
    assert answer.prompt is not None
    assert answer.prompt.logprobs is not None
    assert answer.prompt.logprobs[0] is None
    assert [next(iter(entry)) for entry in answer.prompt.logprobs[1:] if entry] == PROMPT[1:]


async def test_abort_ends_what_it_names(engine: Engine) -> None:
    other = asyncio.create_task(ask_one(engine, PROMPT, request_id="other", max_tokens=30, ignore_eos=True, seed=1))
    reasons, said, named = {}, 0, False
    async with aclosing(engine.generate(endless("one", n=2, seed=1))) as deltas:
        async for delta in deltas:
            said += len(delta.token_ids)
            if delta.finish_reason is not None:
                reasons[delta.index] = delta.finish_reason
            elif said >= 2 and not named:
                named = True
                await engine.abort(["nobody", "one"])
    assert reasons == {0: "abort", 1: "abort"}
    assert said < 10_000
    assert (await other).finish_reason == "length"
    await until(lambda: engine.stats().running == 0)


async def test_a_choice_that_is_over_ends_alone(engine: Engine) -> None:
    over: set[int] = set()
    said, reasons = [0, 0, 0], {}
    async with aclosing(engine.generate(endless(n=3, seed=1), over.__contains__)) as deltas:
        async for delta in deltas:
            assert delta.index not in reasons, "a delta after the end"
            said[delta.index] += len(delta.token_ids)
            if delta.finish_reason is not None:
                reasons[delta.index] = delta.finish_reason
            if said[1] >= 3:
                over.add(1)
            if min(said[0], said[2]) > said[1] + 50:
                break
    assert reasons == {1: "abort"}
    await until(lambda: engine.stats().running == 0)
    assert engine.stats().blocks_free == engine.stats().blocks_total


async def test_a_reader_that_goes_away_frees_its_work(engine: Engine) -> None:
    async with aclosing(engine.generate(endless(n=2))) as deltas:
        await anext(deltas)
        assert engine.stats().running > 0
    await until(lambda: engine.stats().running == 0)
    cancelled = asyncio.create_task(ask(engine, PROMPT, max_tokens=None, ignore_eos=True))
    await until(lambda: engine.stats().running > 0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await until(lambda: engine.stats().running == 0)
    assert engine.stats().blocks_free == engine.stats().blocks_total


BAD: list[tuple[dict[str, Any], list[int], type[RequestError], str]] = [
    ({}, [], BadRequest, "at least one id"),
    ({}, [5, VOCAB], BadRequest, f"Token id {VOCAB} is out of vocabulary"),
    ({}, [5, 999999, 10**30], BadRequest, "is out of vocabulary"),
    ({}, [5, -1], BadRequest, "negative"),
    ({"stop_token_ids": [VOCAB]}, PROMPT, BadRequest, "stop_token_ids"),
    ({"logit_bias": {VOCAB: 1.0}}, PROMPT, BadRequest, "logit_bias"),
    ({"logit_bias": {5: float("nan")}}, PROMPT, BadRequest, "logit_bias"),
    ({"allowed_token_ids": [-1]}, PROMPT, BadRequest, "allowed_token_ids"),
    ({"allowed_token_ids": []}, PROMPT, BadRequest, "allowed_token_ids"),
    ({"logprob_token_ids": [VOCAB]}, PROMPT, BadRequest, "logprob_token_ids"),
    ({"logprobs": 21}, PROMPT, BadRequest, "logprobs of 21, which is greater than max allowed: 20"),
    ({"logprobs": -1}, PROMPT, BadRequest, f"logprobs of {VOCAB}, which is greater than max allowed: 20"),
    ({"prompt_logprobs": 21}, PROMPT, BadRequest, "prompt_logprobs of 21"),
    ({"logprobs": -2}, PROMPT, BadRequest, "logprobs"),
    ({"n": 9}, PROMPT, BadRequest, r"sampling_params\.n must be at most the server's max_num_seqs \(8\), got 9\."),
    ({"n": 0}, PROMPT, BadRequest, "n must be"),
    ({"n": 2, "temperature": 0.0}, PROMPT, BadRequest, "greedy"),
    ({"temperature": -0.1}, PROMPT, BadRequest, "temperature"),
    ({"temperature": float("nan")}, PROMPT, BadRequest, "temperature"),
    ({"temperature": 2.1}, PROMPT, BadRequest, "temperature"),
    ({"top_p": 0.0}, PROMPT, BadRequest, "top_p"),
    ({"top_p": float("inf")}, PROMPT, BadRequest, "top_p"),
    ({"top_k": -2}, PROMPT, BadRequest, "top_k"),
    ({"min_p": 1.1}, PROMPT, BadRequest, "min_p"),
    ({"presence_penalty": 2.5}, PROMPT, BadRequest, "presence_penalty"),
    ({"frequency_penalty": -2.5}, PROMPT, BadRequest, "frequency_penalty"),
    ({"repetition_penalty": 0.0}, PROMPT, BadRequest, "repetition_penalty"),
    ({"repetition_penalty": float("inf")}, PROMPT, BadRequest, "repetition_penalty"),
    ({"max_tokens": 0}, PROMPT, BadRequest, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, PROMPT, BadRequest, "min_tokens"),
    ({"stream_interval": 0}, PROMPT, BadRequest, "stream_interval"),
    ({"bad_words": [""]}, PROMPT, BadRequest, "bad_words"),
    ({"thinking_token_budget": -2}, PROMPT, BadRequest, "thinking_token_budget"),
]


@pytest.mark.parametrize(("params", "prompt", "error", "text"), BAD)
async def test_bad_requests_never_reach_the_loop(
    params: dict[str, Any], prompt: list[int], error: type[RequestError], text: str, engine: Engine
) -> None:
    before = engine.stats().prompt_tokens
    with pytest.raises(error, match=text):
        await ask(engine, prompt, **params)
    assert (engine.stats().prompt_tokens, engine.stats().running) == (before, 0)
    assert (await ask_one(engine, PROMPT, max_tokens=1, ignore_eos=True)).finish_reason == "length"


async def test_a_text_model_takes_no_pictures(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="multimodal"):
        await ask(engine, PROMPT, request={"features": Features([MediaFeature("image", "x", 0, 1)])})


async def test_a_full_queue_refuses_at_once(engine: Engine) -> None:
    async with (
        aclosing(engine.generate(endless("a", n=8))) as first,
        aclosing(engine.generate(endless("b", n=3))) as second,
    ):
        await anext(first)
        waiting = asyncio.ensure_future(anext(second))
        await until(lambda: engine.stats().running + engine.stats().waiting > 8)
        with pytest.raises(Overloaded):
            await ask(engine, PROMPT, n=2, seed=1)
        await engine.abort(["a", "b"])
        await waiting
    await until(lambda: engine.stats().running + engine.stats().waiting == 0)
    assert len(await ask(engine, PROMPT, n=8, max_tokens=2)) == 8


async def test_the_event_loop_stays_free(engine: Engine) -> None:
    """A turn of the event loop never waits for a step."""
    work = asyncio.create_task(ask(engine, PROMPT * 100, n=4, max_tokens=100, ignore_eos=True, seed=1))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 200


async def test_closing_lets_requests_finish(backend: str, files: Source) -> None:
    engine = open_engine(files, EngineOptions(backend=backend))
    request = GenerateRequest("r", PROMPT, stream=True, sampling_params=SamplingParams(max_tokens=40, ignore_eos=True))
    async with aclosing(engine.generate(request)) as deltas:
        said = [*(await anext(deltas)).token_ids]
        closing = asyncio.create_task(engine.close(grace=60))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ask(engine, PROMPT)
        async for delta in deltas:
            said += delta.token_ids
    assert (len(said), delta.finish_reason) == (40, "length")
    await closing
    with pytest.raises(EngineFailed) as failure:
        engine.health()
    assert failure.value.status == 503
    with pytest.raises(EngineFailed):
        await ask(engine, PROMPT)


async def test_closing_waits_no_longer_than_its_grace(backend: str, files: Source) -> None:
    engine = open_engine(files, EngineOptions(backend=backend))
    async with aclosing(engine.generate(endless())) as deltas:
        await anext(deltas)
        closing = asyncio.create_task(engine.close(grace=0.05))
        async for delta in deltas:
            reason = delta.finish_reason
    assert reason == "abort"
    await closing
