"""`/v1/responses`: answered at once, as a stream, or in the background; kept, and going on from what was kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aiohttp import web
from attrs import evolve

from scaleout.codec import dumps, invalid
from scaleout.core import ChatRequest, Json
from scaleout.dialects import responses as dialect
from scaleout.errors import BadRequest
from scaleout.pipeline.response_store import Owner, ResponseStore, Turns, read_turns, write_asked
from scaleout.pipeline.tape import Tape
from scaleout.routes import responses_background as background
from scaleout.routes import responses_kept
from scaleout.routes.answers import json_response, raw_json
from scaleout.routes.asking import ask, send_stream
from scaleout.routes.auth import owner_of
from scaleout.routes.body import read_json
from scaleout.routes.keys import RESPONSES
from scaleout.routes.table import Route


async def create(request: web.Request) -> web.StreamResponse:
    return await answer(request, await read_json(request))


async def answer(request: web.Request, body: Mapping[str, Json]) -> web.StreamResponse:
    """Answer at once, as a stream, or in the background; and keep the response unless `store` is false."""
    store, owner = request.app[RESPONSES], owner_of(request)
    turns = resume(store, owner, body.get("previous_response_id"))
    beyond = sum(map(len, turns or ()))
    asked = await ask(request, dialect, body, partial(parse, store, turns), beyond=beyond)
    assert isinstance(asked.wanted, ChatRequest)
    echo, streams = asked.wanted.echo, asked.wanted.options.stream
    place = None
    if echo["store"]:
        tape = Tape() if echo["background"] and streams else None
        place = background.Place(store, owner, (*(turns or ()), write_asked(body["input"])), tape)
        if echo["background"]:
            queued = background.start(request, asked, place)
            return json_response(queued) if tape is None else await background.follow(request, tape)
    if streams:
        return await send_stream(request, asked, None if place is None else place.keep_last)
    response = await asked.answer()
    payload = dumps(response)
    if place is not None:
        place.keep(response, payload)
    return raw_json(payload)


def resume(store: ResponseStore, owner: Owner, previous: Json) -> Turns | None:
    """The conversation before this request; None where it begins one."""
    if previous is None:
        return None
    if not isinstance(previous, str):
        raise invalid("body.previous_response_id", "Input should be a valid string")
    return store.conversation(owner, previous)


def parse(store: ResponseStore, turns: Turns | None, body: Mapping[str, Json]) -> ChatRequest:
    """The request. Its answer says whether the response is really kept."""
    wanted = dialect.parse(body, None if turns is None else read_turns(turns))
    if wanted.echo["background"] and store.closed:
        raise BadRequest(f"background is not possible here. {store.closed}", "background")
    return evolve(wanted, echo={**wanted.echo, "store": wanted.echo["store"] and not store.closed})


ROUTES: tuple[Route, ...] = (("POST", dialect.PATH, create), *responses_kept.ROUTES)
