"""A coupled answer: the same three stages that a split deployment calls one by one, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from attrs import evolve

from scaleout.core import AnswerHead, GenerateChunk, GenerateRequest, Json, TokenDelta
from scaleout.derender import DerenderState
from scaleout.dialects import Dialect, Request
from scaleout.generate.engine import Engine
from scaleout.generate.merging import merge
from scaleout.pipeline.choices import Choices
from scaleout.pipeline.derendering import StreamState, derender_whole, open_choice
from scaleout.pipeline.generating import Watch, generate_chunks, generate_whole
from scaleout.pipeline.stages import Front

Chunks = AsyncGenerator[tuple[int, GenerateChunk], None]
"""Chunks of several prompts, each with the prompt's place in the request."""


async def answer_whole(
    front: Front,
    engine: Engine,
    dialect: Dialect,
    request: Request,
    rendered: Sequence[GenerateRequest],
    head: AnswerHead,
) -> Json:
    """generate and derender a rendered request. The engine is stopped where a stop string ends the answer."""
    jobs = [
        asyncio.ensure_future(generate_whole(engine, for_engine(one), head.model, _watch_stops(front, request, one)))
        for one in rendered
    ]
    try:
        responses = await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()
    return derender_whole(front, dialect, request, responses, [one.token_ids for one in rendered], head=head)


async def answer_stream(
    front: Front,
    engine: Engine,
    dialect: Dialect,
    request: Request,
    rendered: Sequence[GenerateRequest],
    head: AnswerHead,
) -> AsyncGenerator[Json, None]:
    """The chunks of a streamed answer as they come. Closing the iterator aborts what still runs."""
    n = rendered[0].sampling_params.n

    def open_one(index: int) -> StreamState:
        prompt = rendered[index // n].token_ids
        return open_choice(front, dialect, request, evolve(head, prompt_token_ids=prompt), prompt)

    prompt_tokens = sum(len(one.token_ids) for one in rendered)
    options = request.options.stream_options
    usage = options is not None and options.include_usage
    choices = Choices(front, dialect, request, head, open_one, len(rendered) * n, prompt_tokens, usage)
    stops = bool(request.sampling.stop)
    async with aclosing(_generate_all(engine, rendered, choices.ended if stops else None)) as chunks:
        async for i, chunk in chunks:
            for event in choices.take(chunk, i * n):
                yield event
            # There may be nothing left to wait for but the engine's count.
            if stops and choices.all_ended:
                break
    for event in choices.finish():
        yield event


def for_engine(rendered: GenerateRequest) -> GenerateRequest:
    """The request as an engine gets it: stop strings stay with the stage that knows text, so ids must come as they are made."""
    if not rendered.sampling_params.stop:
        return rendered
    return evolve(rendered, stream=True, sampling_params=evolve(rendered.sampling_params, stop=()))


def _watch_stops(front: Front, request: Request, rendered: GenerateRequest) -> Watch | None:
    """Reads along to see when a choice has come to a stop string."""
    if not request.sampling.stop:
        return None
    states: dict[int, DerenderState] = {}

    def closed(delta: TokenDelta) -> bool:
        if delta.index not in states:
            states[delta.index] = front.derenderer.begin(request, rendered.token_ids, "")
        front.derenderer.feed(states[delta.index], delta)
        return states[delta.index].closed

    return closed


def _generate_all(
    engine: Engine, rendered: Sequence[GenerateRequest], ended: Callable[[int, int], bool] | None
) -> Chunks:
    """The chunks of all prompts as they come. What has `ended` is made no further, whatever the others do: prompts, and their choices."""

    async def one(place: int, request: GenerateRequest) -> Chunks:
        n = request.sampling_params.n
        over = None if ended is None else lambda index: ended(place * n + index, 1)
        async with aclosing(generate_chunks(engine, for_engine(request), over)) as chunks:
            async for chunk in chunks:
                if ended is not None and ended(place * n, n):
                    break
                yield place, chunk

    return merge([one(place, request) for place, request in enumerate(rendered)])
