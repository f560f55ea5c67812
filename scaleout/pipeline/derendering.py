"""The derender stage in a dialect: whole results, or one chunk at a time with all that must be remembered in `StreamState`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex

from attrs import define, evolve

from scaleout.core import (
    AnswerHead,
    ChoiceAnswer,
    ChoiceDelta,
    GenerateChunk,
    GenerateResponse,
    Json,
    PromptInfo,
    TokenDelta,
    Usage,
)
from scaleout.derender import DerenderState, fold
from scaleout.derender.state import read_count
from scaleout.dialects import Dialect, Request
from scaleout.errors import BadRequest, BadState, StaleState
from scaleout.pipeline.stages import Front
from scaleout.wire import write_prompt_logprobs

GENERATE_PREFIX = "generate-tokens-"
MAX_ID = 256


def open_head(dialect: Dialect, request_id: str | None, model: str) -> AnswerHead:
    """What is the same for every chunk of an answer. Its id is the request's, without the prefix that a peer's engine puts before it."""
    known = (request_id or "").removeprefix(GENERATE_PREFIX)
    return AnswerHead(known or f"{dialect.ID_PREFIX}{token_hex(8)}", int(time.time()), model)


def derender_whole(
    front: Front,
    dialect: Dialect,
    request: Request | None,
    responses: Sequence[GenerateResponse],
    prompt_ids: Sequence[Sequence[int] | None],
    *,
    head: AnswerHead,
    prompt_tokens: int | None = None,
) -> Json:
    """Results of one request (one per prompt) → a whole answer. Choices are numbered through over all results.

    `prompt_tokens` None: counted by the engine, or from the prompt's ids.
    """
    head = AnswerHead(
        head.id,
        head.created,
        head.model,
        prompt_token_ids=prompt_ids[0],
        prompt_logprobs=_show_prompt_logprobs(front, responses[0]),
        kv_transfer_params=_same([r.kv_transfer_params for r in responses]),
        ec_transfer_params=_same([r.ec_transfer_params for r in responses]),
        prompt_text=_show_prompt(front, request, prompt_ids[0]),
    )
    answers: list[ChoiceAnswer] = []
    for response, ids in zip(responses, prompt_ids, strict=True):
        shown_logprobs = _show_prompt_logprobs(front, response)
        for choice in response.choices:
            answer = _answer_choice(front, request, response, choice, ids, head.id)
            answer.prompt_token_ids, answer.prompt_logprobs = ids, shown_logprobs
            if len(responses) > 1:
                answer.index = len(answers)
            answers.append(answer)
    return dialect.response(head, request, answers, count_usage(answers, responses, prompt_ids, prompt_tokens))


def _answer_choice(
    front: Front,
    request: Request | None,
    response: GenerateResponse,
    choice: TokenDelta,
    prompt_ids: Sequence[int] | None,
    seed: str,
) -> ChoiceAnswer:
    state = front.derenderer.begin(request, prompt_ids, seed)
    if response.prompt_logprobs is not None:
        choice = evolve(choice, prompt=PromptInfo(logprobs=response.prompt_logprobs))
    return fold([front.derenderer.feed(state, choice)])


def count_usage(
    answers: Sequence[ChoiceAnswer],
    responses: Sequence[GenerateResponse],
    prompt_ids: Sequence[Sequence[int] | None],
    prompt_tokens: int | None,
) -> Usage:
    """Sampled ids up to where each answer ends; the prompt's from the request, else from the engine, else from its ids."""
    counted = [response.usage for response in responses]
    if prompt_tokens is None:
        prompt_tokens = sum(
            usage.prompt_tokens if usage is not None else len(ids or ())
            for usage, ids in zip(counted, prompt_ids, strict=True)
        )
    cached = [usage.cached_tokens for usage in counted if usage is not None and usage.cached_tokens is not None]
    thoughts = [answer.reasoning_tokens for answer in answers if answer.reasoning_tokens is not None]
    return Usage(
        prompt_tokens,
        sum(answer.sampled for answer in answers),
        sum(cached) if cached else None,
        sum(thoughts) if thoughts else None,
    )


def _show_prompt(front: Front, request: Request | None, ids: Sequence[int] | None) -> str | None:
    if request is None or ids is None or not request.options.return_prompt_text:
        return None
    return front.tokenizer.decode(ids, skip_special_tokens=False)


def _show_prompt_logprobs(front: Front, response: GenerateResponse | GenerateChunk) -> Json:
    return write_prompt_logprobs(
        response.prompt_logprobs, lambda i: front.tokenizer.decode([i], skip_special_tokens=False)
    )


def _same(values: Sequence[Json]) -> Json:
    """The value that all agree on, else null."""
    return values[0] if all(value == values[0] for value in values) else None


# ---------------------------------------------------------------------------------------------- chunk by chunk


@define
class StreamState:
    """One choice of a streamed answer between two chunks. `prompt_tokens` None: the engine's count is shown.

    `choices`, `wants_usage`: how many of them there are, and whether the answer ends with its usage, as far as render said so.
    """

    head: AnswerHead
    carry: dict[str, Json]
    derender: DerenderState
    prompt_tokens: int | None = None
    choices: int = 1
    wants_usage: bool = False


def open_choice(
    front: Front,
    dialect: Dialect,
    request: Request | None,
    head: AnswerHead,
    prompt_ids: Sequence[int] | None,
    prompt_tokens: int | None = None,
) -> StreamState:
    """The state before a choice's first chunk."""
    derender = front.derenderer.begin(request, prompt_ids, head.id)
    text = _show_prompt(front, request, prompt_ids)
    if text is not None:
        head = evolve(head, prompt_text=text)
    return StreamState(head, dialect.open_stream(request), derender, prompt_tokens)


def derender_chunk(
    front: Front, dialect: Dialect, state: StreamState, chunk: GenerateChunk
) -> tuple[ChoiceDelta | None, list[Json]]:
    """Advance `state` by one chunk of at most one choice. Returns what was derendered and the dialect's events for it."""
    usage = chunk.usage
    if usage is not None and state.prompt_tokens is not None:
        usage = evolve(usage, prompt_tokens=state.prompt_tokens)
    if usage is not None and usage.reasoning_tokens is None and front.derenderer.tells_thoughts(state.derender):
        usage = evolve(usage, reasoning_tokens=state.derender.reasoning)
    if not chunk.choices:
        state.carry, events = dialect.chunk(state.head, state.carry, None, usage)
        return None, events
    given = chunk.choices[0]
    if chunk.prompt_logprobs is not None:
        given = evolve(given, prompt=PromptInfo(logprobs=chunk.prompt_logprobs))
    delta = front.derenderer.feed(state.derender, given)
    state.carry, events = dialect.chunk(state.head, state.carry, delta, usage)
    return delta, events


def dump_stream_state(front: Front, dialect: Dialect, state: StreamState) -> Json:
    """The state as JSON for the client to carry."""
    head = state.head
    wire: dict[str, Json] = {
        **front.derenderer.dump(state.derender),
        "dialect": dialect.NAME,
        "head": [head.id, head.created, head.model],
        "carry": state.carry,
        "prompt_tokens": state.prompt_tokens,
    }
    if state.choices != 1:
        wire["n"] = state.choices
    if state.wants_usage:
        wire["usage"] = True
    return wire


def load_stream_state(front: Front, dialect: Dialect, value: Json) -> StreamState:
    """A state that came back. Raises `BadState`, or `StaleState` when it was made elsewhere."""
    derender = front.derenderer.load(value)
    if value.get("dialect") != dialect.NAME:
        raise StaleState("stream_state was made by another route", "stream_state")
    match value.get("head"):
        case [str(request_id), int(created), str(model)] if len(request_id) <= MAX_ID and len(model) <= 4096:
            head = AnswerHead(request_id, read_count(created, "time"), model)
        case _:
            raise BadState("stream_state: bad head", "stream_state")
    carry = value.get("carry")
    if not isinstance(carry, dict):
        raise BadState("stream_state: bad carry", "stream_state")
    prompt_tokens = value.get("prompt_tokens")
    if prompt_tokens is not None:
        read_count(prompt_tokens, "prompt_tokens")
    choices, wants_usage = read_count(value.get("n", 1), "n"), value.get("usage") is True
    return StreamState(head, carry, derender, prompt_tokens, choices, wants_usage)


def one_choice(chunk: GenerateChunk, dialect: Dialect) -> TokenDelta | None:
    """The chunk's only choice; None for a usage chunk. Raises `BadRequest` when there are several."""
    if len(chunk.choices) > 1:
        raise BadRequest(
            f"a streamed {dialect.NAME} derender expects at most one choice per chunk (got {len(chunk.choices)}).",
            "body.generate_chunk.choices",
        )
    return chunk.choices[0] if chunk.choices else None
