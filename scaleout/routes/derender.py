"""`{dialect}/derender`: an engine's result or chunk, with the request's context → the dialect's answer (CONTRACT 2.9, 7)."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from scaleout import codec
from scaleout.codec import Unfit, dumps
from scaleout.core import GenerateChunk, GenerateResponse, Json
from scaleout.dialects import DIALECTS, Dialect
from scaleout.errors import BadRequest
from scaleout.pipeline import Front, Stages
from scaleout.pipeline.derendering import (
    StreamState,
    derender_chunk,
    derender_whole,
    dump_stream_state,
    one_choice,
    open_choice,
    open_head,
)
from scaleout.result_wire import read_generate_response
from scaleout.routes.answers import raw_json
from scaleout.routes.body import media_type, read_json
from scaleout.routes.derender_context import (
    Body,
    check_total,
    read_chunk,
    read_context,
    read_count,
    read_prompt_ids,
    read_state,
    read_text,
    recover_prompt,
    with_ids,
)
from scaleout.routes.derender_stream import EVENT_STREAM, derender_stream
from scaleout.routes.keys import METRICS, STAGES
from scaleout.routes.table import Handler, Route
from scaleout.routes.work import run


def make_handler(dialect: Dialect) -> Handler:
    many = dialect.NAME == "completions"
    context_key = "completion_request" if many else f"{dialect.NAME}_request"

    async def derender(request: web.Request) -> web.StreamResponse:
        if media_type(request) == EVENT_STREAM:
            return await derender_stream(request, dialect, context_key)
        body = await read_json(request)
        stages = request.app[STAGES]
        front = await stages.front()

        def work() -> tuple[bytes, int]:
            try:
                streaming = codec.read_bool(body.get("stream") or False)
            except Unfit as e:
                raise codec.invalid("body.stream", str(e)) from None
            model = stages.served(read_text(body, "model"))
            if streaming:
                return _chunk(stages, front, dialect, body, context_key, model)
            return _whole(stages, front, dialect, body, context_key, model, many)

        payload, tokens = await run(request, work)
        request.app[METRICS].derendered_tokens.inc(tokens)
        return raw_json(payload)

    return derender


# ---------------------------------------------------------------------------------------------- whole results


def _whole(
    stages: Stages, front: Front, dialect: Dialect, body: Body, context_key: str, model: str, many: bool
) -> tuple[bytes, int]:
    if many:
        responses = _read_responses(front, body)
        prompt_tokens = _read_counts(body, len(responses))
        given = _read_prompt_lists(front, body, len(responses))
    else:
        responses = [_read_response(front, body.get("generate_response"), "body.generate_response")]
        prompt_tokens = read_count(body.get("prompt_tokens"), "body.prompt_tokens")
        given = [
            read_prompt_ids(
                front, body.get("prompt_token_ids"), "body.prompt_token_ids", "prompt_token_ids length ({})"
            )
        ]
    request = read_context(stages, dialect, body, context_key)
    prompt_ids = [
        ids if ids is not None else response.prompt_token_ids for ids, response in zip(given, responses, strict=True)
    ]
    if prompt_ids == [None]:
        prompt_ids = [recover_prompt(front, request)]
    head = open_head(dialect, responses[0].request_id, model)
    answer = derender_whole(front, dialect, request, responses, prompt_ids, head=head, prompt_tokens=prompt_tokens)
    return dumps(answer), sum(len(choice.token_ids) for response in responses for choice in response.choices)


def _read_responses(front: Front, body: Body) -> list[GenerateResponse]:
    given = body.get("generate_responses")
    if given is None:
        raise codec.invalid("body.generate_responses", "Field required")
    if not isinstance(given, list):
        raise codec.invalid("body.generate_responses", "Input should be a valid list")
    if not given:
        raise BadRequest("generate_responses must not be empty", "body.generate_responses")
    most = front.bounds.max_choices
    if len(given) > most:
        raise BadRequest(
            f"generate_responses count ({len(given)}) exceeds server maximum ({most}). "
            "Set VLLM_MAX_N_SEQUENCES to increase this limit.",
            "body.generate_responses",
        )
    return [_read_response(front, one, f"body.generate_responses.{i}") for i, one in enumerate(given)]


def _read_response(front: Front, given: Json, path: str) -> GenerateResponse:
    """One result, within all bounds before any of it is decoded."""
    if given is None:
        raise codec.invalid(path, "Field required")
    _check_sizes(front, given, path)
    response = read_generate_response(given, path)
    front.bounds.check_choices(response.choices, response.request_id, path)
    front.bounds.check_prompt_logprobs(response.prompt_logprobs, response.request_id, path)
    if response.prompt_token_ids is not None:
        front.bounds.check_ids(response.prompt_token_ids, "prompt_token_ids length ({})", f"{path}.prompt_token_ids")
    return response


def _check_sizes(front: Front, given: Json, path: str) -> None:
    """Lengths of the raw lists: reading millions of ids one by one is work already."""
    choices = given.get("choices") if isinstance(given, dict) else None
    if not isinstance(choices, list):
        return
    front.bounds.check_count(len(choices), str(given.get("request_id")), path)
    for i, choice in enumerate(choices):
        if not isinstance(choice, dict):
            continue
        ids = choice.get("token_ids")
        if ids is None:
            raise BadRequest(f"choice {i} has empty or null token_ids", f"{path}.choices.{i}.token_ids")
        if isinstance(ids, list):
            front.bounds.check_length(
                len(ids), f"token_ids length ({len(ids)}) in choice {i}", f"{path}.choices.{i}.token_ids"
            )


def _read_counts(body: Body, expected: int) -> int | None:
    given = body.get("prompt_tokens")
    if given is None:
        return None
    counts = given if isinstance(given, list) else [given]
    _expect_as_many("prompt_tokens", len(counts), expected)
    return sum(read_count(one, f"body.prompt_tokens.{i}") or 0 for i, one in enumerate(counts))


def _read_prompt_lists(front: Front, body: Body, expected: int) -> list[Sequence[int] | None]:
    given = body.get("prompt_token_ids")
    if given is None:
        return [None] * expected
    if not isinstance(given, list):
        raise codec.invalid("body.prompt_token_ids", "Input should be a valid list")
    _expect_as_many("prompt_token_ids", len(given), expected)
    return [
        read_prompt_ids(front, one, f"body.prompt_token_ids.{i}", f"prompt_token_ids[{i}] length ({{}})")
        for i, one in enumerate(given)
    ]


def _expect_as_many(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise BadRequest(f"{name} length ({got}) must equal generate_responses length ({expected})", f"body.{name}")


# ---------------------------------------------------------------------------------------------- chunks


def _chunk(
    stages: Stages, front: Front, dialect: Dialect, body: Body, context_key: str, model: str
) -> tuple[bytes, int]:
    given = body.get("generate_chunk")
    if given is None:
        raise codec.invalid("body.generate_chunk", "Field required")
    chunk = read_chunk(front, given, "body.generate_chunk")
    choice = one_choice(chunk, dialect)
    carried = body.get("stream_state")
    if carried is not None:
        state = read_state(stages, front, dialect, carried)
        begun = True
    else:
        state = _first_state(stages, front, dialect, body, context_key, model, chunk)
        begun = choice is not None
    if choice is not None:
        check_total(front, state, len(choice.token_ids), "body.generate_chunk.choices.0.token_ids")
    _, events = derender_chunk(front, dialect, state, chunk)
    # Usage that comes before any choice leaves nothing to remember: the choice is not known yet.
    after = dump_stream_state(front, dialect, state) if begun else None
    shown: dict[str, Json] = {"events": events} if dialect.NAMED_EVENTS else {"chunk": events[0]}
    return dumps({**shown, "stream_state": after}), 0 if choice is None else len(choice.token_ids)


def _first_state(
    stages: Stages, front: Front, dialect: Dialect, body: Body, context_key: str, model: str, chunk: GenerateChunk
) -> StreamState:
    ids = read_prompt_ids(front, body.get("prompt_token_ids"), "body.prompt_token_ids", "prompt_token_ids length ({})")
    if ids is None:
        ids = chunk.prompt_token_ids
    prompt_tokens = read_count(body.get("prompt_tokens"), "body.prompt_tokens")
    request = read_context(stages, dialect, body, context_key)
    if ids is None and chunk.choices:
        ids = recover_prompt(front, request)
    head = open_head(dialect, chunk.request_id, model)
    return open_choice(front, dialect, request, with_ids(head, ids), ids, prompt_tokens)


ROUTES: tuple[Route, ...] = tuple(("POST", f"{dialect.PATH}/derender", make_handler(dialect)) for dialect in DIALECTS)
