"""The generate stage as its wire shows it: one engine's deltas → a whole result, or a stream of chunks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from attrs import define, field

from scaleout.core import GenerateChunk, GenerateRequest, GenerateResponse, PositionLogprobs, TokenDelta, Usage
from scaleout.generate.engine import Engine, Over

Watch = Callable[[TokenDelta], bool]
"""Told of every delta; true when its choice has said what it had to say and the engine can end it."""


@define
class _Choice:
    token_ids: list[int] = field(factory=list)
    logprobs: list[PositionLogprobs] | None = None
    last: TokenDelta | None = None

    def add(self, delta: TokenDelta) -> None:
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(delta.logprobs)
        self.last = delta

    def whole(self, index: int) -> TokenDelta:
        reason, stop = (self.last.finish_reason, self.last.stop_reason) if self.last else (None, None)
        return TokenDelta(index, self.token_ids, self.logprobs, reason or "abort", stop)


async def generate_whole(
    engine: Engine, request: GenerateRequest, model: str, watch: Watch | None = None
) -> GenerateResponse:
    """Run a request to its end, or each choice until `watch` has seen enough of it. Raises what the engine raises."""
    choices: defaultdict[int, _Choice] = defaultdict(
        _Choice
    )  # grows with the answer: only the engine knows whether n is sane
    prompt = kv = ec = None
    over: set[int] = set()
    async with aclosing(engine.generate(request, over.__contains__)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            if delta.index in over:
                continue
            choices[delta.index].add(delta)
            if delta.prompt is not None and (prompt is None or delta.prompt.logprobs is not None):
                prompt = delta.prompt
            kv, ec = delta.kv_transfer_params or kv, delta.ec_transfer_params or ec
            if watch is not None and watch(delta):
                over.add(delta.index)
                if len(over) == request.sampling_params.n:
                    break
    usage = Usage(
        len(request.token_ids),
        sum(len(choice.token_ids) for choice in choices.values()),
        prompt.cached_tokens if prompt is not None else None,
    )
    return GenerateResponse(
        request_id=request.request_id,
        choices=[choices[i].whole(i) for i in range(request.sampling_params.n)],
        model=model,
        created=int(time.time()),
        usage=usage,
        prompt_token_ids=request.token_ids if request.return_token_ids else None,
        prompt_logprobs=prompt.logprobs if prompt is not None else None,
        kv_transfer_params=kv,
        ec_transfer_params=ec,
    )


async def generate_chunks(
    engine: Engine, request: GenerateRequest, over: Over | None = None
) -> AsyncGenerator[GenerateChunk, None]:
    """A request's stream: one choice per chunk, then the usage where it was asked for. Closing it aborts the request.

    Prompt ids, prompt logprobs and transfer parameters travel with the first chunk that has them.
    """
    options = request.stream_options
    continuous = options is not None and options.include_usage and options.continuous_usage_stats
    counts: defaultdict[int, int] = defaultdict(int)
    cached: int | None = None
    first = True
    async with aclosing(engine.generate(request, over)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            counts[delta.index] += len(delta.token_ids)
            if delta.prompt is not None:
                cached = delta.prompt.cached_tokens
            usage = Usage(len(request.token_ids), counts[delta.index], cached) if continuous else None
            yield GenerateChunk(
                request.request_id,
                [delta],
                usage,
                request.token_ids if first and request.return_token_ids else None,
                delta.prompt.logprobs if delta.prompt is not None else None,
                delta.kv_transfer_params,
                delta.ec_transfer_params,
            )
            first = False
    if options is not None and options.include_usage:
        yield GenerateChunk(request.request_id, [], Usage(len(request.token_ids), sum(counts.values()), cached))
