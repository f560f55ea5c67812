"""`/inference/v1/generate` and the abort routes: token ids in, token ids out (CONTRACT 6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from secrets import token_hex

from aiohttp import web
from attrs import evolve

from scaleout import codec
from scaleout.config import Mode
from scaleout.core import GenerateRequest, Json
from scaleout.errors import BadRequest, NotSupported
from scaleout.pipeline.generating import generate_chunks, generate_whole
from scaleout.routes.answers import json_response
from scaleout.routes.body import parse_object, read_bytes, read_json
from scaleout.routes.keys import CONFIG, METRICS, REQUEST_ID, STAGES
from scaleout.routes.media import resolve_media
from scaleout.routes.sse import EventStream
from scaleout.routes.table import Route
from scaleout.routes.trace import trace_headers
from scaleout.routes.work import run
from scaleout.wire import read_generate_request, write_generate_chunk, write_generate_response

PEER_PREFIX = "generate-tokens-"


async def generate(request: web.Request) -> web.StreamResponse:
    """A GenerateRequest, answered whole or as a stream of events."""
    stages = request.app[STAGES]
    wanted = await read_request(request)
    stages.served(wanted.model)
    model = stages.config.served_model_names[0]
    wanted = settle(wanted, request, stages.files.generation_config)
    engine = stages.ready_engine()
    if not wanted.stream:
        response = await generate_whole(engine, wanted, model)
        if response.usage is not None:
            request.app[METRICS].generated_tokens.inc(response.usage.completion_tokens)
        return json_response(write_generate_response(response))
    counts: dict[int, int] = {}
    keep_alive = stages.config.sse_keep_alive_interval
    async with (
        EventStream(request, keep_alive=keep_alive) as stream,
        aclosing(generate_chunks(engine, wanted)) as chunks,
    ):
        async for chunk in chunks:
            for delta in chunk.choices:
                counts[delta.index] = counts.get(delta.index, 0) + len(delta.token_ids)
                request.app[METRICS].generated_tokens.inc(len(delta.token_ids))
            so_far = counts[chunk.choices[0].index] if chunk.choices else 0
            await stream.send(codec.dumps(write_generate_chunk(chunk, so_far)))
        return await stream.done()


async def read_request(request: web.Request) -> GenerateRequest:
    """The body. Features in it are decoded, and media fetched and prepared, where they hold nobody up."""
    body = await read_json(request)
    if not body.get("features") and not body.get("content_parts"):
        return read_generate_request(body)
    return await resolve_media(request, await run(request, partial(read_generate_request, body)))


def settle(wanted: GenerateRequest, request: web.Request, generation_config: Json) -> GenerateRequest:
    """Decide what the body leaves open, and refuse what a token engine cannot do."""
    params = wanted.sampling_params
    if wanted.output_mode == "text":
        raise BadRequest(
            "output_mode='text' is not served here: send the result to a derender route, or use output_mode='tokens'.",
            "output_mode",
        )
    if params.stop:
        if not params.skip_clone and request.app[CONFIG].mode is Mode.TOKENS_ONLY:
            raise BadRequest(
                "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
                "Check stop strings on the coordinator, or use stop_token_ids.",
                "stop",
            )
        # A rendered body goes on to derender, which cuts at its stop strings.
        params = evolve(params, stop=())
    if params.max_tokens is None:
        limit = generation_config.get("max_new_tokens")
        if isinstance(limit, int) and limit > 0:
            params = evolve(params, max_tokens=limit)
    request_id = request.get(REQUEST_ID) or wanted.request_id or token_hex(8)
    return evolve(wanted, sampling_params=params, request_id=request_id, trace_headers=trace_headers(request))


async def abort(request: web.Request) -> web.Response:
    """`{"request_ids": […]}`: those requests end with finish reason `abort`. Unknown ids are no error."""
    body = parse_object(await read_bytes(request), request.app[CONFIG].limits.max_json_depth)
    if "request_ids" not in body:
        raise BadRequest("Missing 'request_ids' in request body", "request_ids")
    ids = body["request_ids"]
    if isinstance(ids, str):
        ids = [ids]
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise codec.invalid("body.request_ids", "Input should be a list of strings")
    engine = request.app[STAGES].engine
    if engine is None:
        raise NotSupported("This server has no engine.")
    await engine.abort(spellings(ids))
    return web.Response()


def spellings(ids: Sequence[str]) -> list[str]:
    """Ids as they were given here, and as a peer's engine would have returned them."""
    return [*ids, *(one.removeprefix(PEER_PREFIX) for one in ids if one.startswith(PEER_PREFIX))]


ROUTES: tuple[Route, ...] = (("POST", "/inference/v1/generate", generate),)
ABORT_ROUTES: tuple[Route, ...] = (("POST", "/inference/v1/abort_requests", abort),)
LEGACY_ABORT_ROUTES: tuple[Route, ...] = (("POST", "/abort_requests", abort),)
