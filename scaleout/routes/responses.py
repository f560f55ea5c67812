"""`/v1/responses` and what is asked of a response afterwards: GET, cancel, delete, and going on from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from aiohttp import web
from attrs import evolve, frozen

from scaleout.codec import dumps, invalid
from scaleout.core import ChatRequest, Json
from scaleout.dialects import responses as dialect
from scaleout.dialects.responses_answer import write_response
from scaleout.errors import BadRequest, RequestError
from scaleout.pipeline.response_store import (
    Owner,
    ResponseStore,
    Stored,
    Turns,
    not_found,
    read_turns,
    write_turn,
)
from scaleout.routes.answers import INTERNAL, json_response, raw_json
from scaleout.routes.asking import Asked, ask, send_stream
from scaleout.routes.auth import owner_of
from scaleout.routes.body import read_json
from scaleout.routes.keys import LIFECYCLE, RESPONSES
from scaleout.routes.table import Route

LOG = logging.getLogger(__name__)

LAST_EVENTS = ("response.completed", "response.incomplete")
"""Events that hold the whole response."""


@frozen
class Place:
    """Where the response to one request goes. `turns` and `input` are what it answers."""

    store: ResponseStore
    owner: Owner
    turns: Turns
    input: Json

    def keep(self, response: Json, payload: bytes) -> None:
        """`payload`: the response as JSON."""
        turns = (*self.turns, write_turn(self.input, response["output"]))
        self.store.put(self.owner, response["id"], Stored(payload, turns))

    def keep_last(self, event: Json) -> None:
        """Keep the response of the event that ends a stream."""
        if event["type"] in LAST_EVENTS:
            self.keep(event["response"], dumps(event["response"]))


async def create(request: web.Request) -> web.StreamResponse:
    return await answer(request, await read_json(request))


async def answer(request: web.Request, body: Mapping[str, Json]) -> web.StreamResponse:
    """Answer at once, as a stream, or in the background; and keep the response unless `store` is false."""
    store, owner = request.app[RESPONSES], owner_of(request)
    turns = resume(store, owner, body.get("previous_response_id"))
    beyond = sum(map(len, turns or ()))
    asked = await ask(request, dialect, body, partial(parse, store, turns), beyond=beyond)
    echo = echo_of(asked)
    place = Place(store, owner, turns or (), body["input"])
    if echo["background"]:
        return json_response(start_in_background(request, asked, place))
    if asked.wanted.options.stream:
        return await send_stream(request, asked, place.keep_last if echo["store"] else None)
    response = await asked.answer()
    payload = dumps(response)
    if echo["store"]:
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
    if wanted.echo["background"]:
        if store.closed:
            raise BadRequest(f"background is not possible here. {store.closed}", "background")
        if wanted.options.stream:
            raise BadRequest("background cannot be combined with stream; ask for the response by its id", "stream")
    return evolve(wanted, echo={**wanted.echo, "store": wanted.echo["store"] and not store.closed})


def echo_of(asked: Asked) -> Mapping[str, Json]:
    assert isinstance(asked.wanted, ChatRequest)
    return asked.wanted.echo


# ---------------------------------------------------------------------------------------------- in the background


def start_in_background(request: web.Request, asked: Asked, place: Place) -> Json:
    """Begin to answer. Returns the response as it stands: queued. The work counts as a request until it is done."""
    begun = write_response(asked.head, echo_of(asked), [], None, None)
    stored = Stored(dumps(begun))
    if not place.store.put(place.owner, asked.head.id, stored):
        raise BadRequest("The response would be larger than all responses may be that are kept here", "background")
    lifecycle = request.app[LIFECYCLE]
    lifecycle.enter(bounded=False)
    stored.work = asyncio.create_task(work_in_background(asked, place, stored, begun), name=asked.head.id)
    # Not in the work itself: a task that is cancelled before its first step never comes to its `finally`.
    stored.work.add_done_callback(lambda _: lifecycle.leave(bounded=False))
    return {**begun, "status": "queued"}


async def work_in_background(asked: Asked, place: Place, stored: Stored, begun: dict[str, Json]) -> None:
    message = INTERNAL
    try:
        response = await asked.answer()
        stored.work = None
        place.keep(response, dumps(response))
    except RequestError as error:
        message = error.message
    # Of every kind: no middleware stands around this task, and whoever asks for the response must find that it failed.
    except Exception:
        LOG.exception("response %s failed", asked.head.id)
    else:
        return
    stored.work = None
    failed = {**begun, "status": "failed", "error": {"code": "server_error", "message": message}}
    place.store.put(place.owner, asked.head.id, Stored(dumps(failed)))


# ---------------------------------------------------------------------------------------------- afterwards


async def retrieve(request: web.Request) -> web.StreamResponse:
    """The response as it was answered, or as far as it has come."""
    if request.query.get("stream", "").lower() in ("1", "true"):
        raise BadRequest("A response that is asked for by its id is not streamed here", "stream")
    return raw_json(request.app[RESPONSES].find(owner_of(request), request.match_info["response_id"]).payload)


async def cancel(request: web.Request) -> web.StreamResponse:
    """End a response that is being made in the background. One that is done stays as it is."""
    store, owner, response_id = request.app[RESPONSES], owner_of(request), request.match_info["response_id"]
    stored = store.find(owner, response_id)
    response = stored.response
    if not response["background"]:
        error = BadRequest("Cannot cancel a synchronous response.", "response_id")
        error.type = "invalid_request_error"
        raise error
    if stored.work is not None:
        response["status"] = "cancelled"
        stored = Stored(dumps(response))
        store.put(owner, response_id, stored)
    return raw_json(stored.payload)


async def delete(request: web.Request) -> web.StreamResponse:
    """Forget a response."""
    store, response_id = request.app[RESPONSES], request.match_info["response_id"]
    if not store.drop(owner_of(request), response_id):
        raise not_found(response_id, "response_id", store.closed)
    return json_response({"id": response_id, "object": "response", "deleted": True})


ONE = dialect.PATH + "/{response_id}"
ROUTES: tuple[Route, ...] = (
    ("POST", dialect.PATH, create),
    ("GET", ONE, retrieve),
    ("DELETE", ONE, delete),
    ("POST", f"{ONE}/cancel", cancel),
)
