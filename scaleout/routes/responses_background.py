"""Responses that are made in the background, whether or not anybody waits: as one piece, or as a stream that can be taken up again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import web
from attrs import frozen

from scaleout.codec import dumps
from scaleout.core import ChatRequest, Json
from scaleout.dialects.responses_answer import write_response
from scaleout.errors import BadRequest, RequestError
from scaleout.pipeline.response_store import Owner, ResponseStore, Stored, Turns, write_said
from scaleout.pipeline.tape import Tape
from scaleout.routes.answers import INTERNAL
from scaleout.routes.asking import Asked
from scaleout.routes.keys import LIFECYCLE, STAGES
from scaleout.routes.sse import EventStream, frame

LOG = logging.getLogger(__name__)

LAST_EVENTS = ("response.completed", "response.incomplete")
"""Events that hold the whole response."""


@frozen
class Place:
    """Where the response to one request goes. `turns`: what it answers, its own input at the end. `tape`: its stream, if it is kept."""

    store: ResponseStore
    owner: Owner
    turns: Turns
    tape: Tape | None = None

    def keep(self, response: Json, payload: bytes) -> None:
        """`payload`: the response as JSON."""
        stored = Stored(payload, self.turns, write_said(response["output"]), tape=self.tape)
        self.store.put(self.owner, response["id"], stored)

    def keep_last(self, event: Json) -> None:
        """Keep the response of the event that ends a stream."""
        if event["type"] in LAST_EVENTS:
            self.keep(event["response"], dumps(event["response"]))

    def keep_ended(self, response: Json) -> Stored:
        """Keep a response that was cancelled, or has failed: nothing goes on from it."""
        if self.tape is not None:
            if not len(self.tape):
                begun = {**response, "status": "in_progress", "error": None}
                self.tape.add(write_event("response.created", 0, begun))
            name = "response.failed" if response["status"] == "failed" else "response.incomplete"
            self.tape.add(write_event(name, len(self.tape), response))
        stored = Stored(dumps(response), self.turns, tape=self.tape)
        self.store.put(self.owner, response["id"], stored)
        return stored


def write_event(name: str, number: int, response: Json) -> bytes:
    return frame(dumps({"type": name, "sequence_number": number, "response": response}), name)


def start(request: web.Request, asked: Asked, place: Place) -> dict[str, Json]:
    """Begin to answer. Returns the response as it stands: queued. The work counts as a request until it is done."""
    assert isinstance(asked.wanted, ChatRequest)
    begun = write_response(asked.head, asked.wanted.echo, [], None, None)
    stored = Stored(dumps(begun), place.turns, tape=place.tape)
    if not place.store.put(place.owner, asked.head.id, stored):
        raise BadRequest("The response would be larger than all responses may be that are kept here", "background")
    lifecycle = request.app[LIFECYCLE]
    lifecycle.enter(bounded=False)

    def end(_: asyncio.Task[None]) -> None:
        lifecycle.leave(bounded=False)
        if place.tape is not None:
            place.tape.end()

    stored.work = asyncio.create_task(_work(asked, place, stored, begun), name=asked.head.id)
    # Not in the work itself: a task that is cancelled before its first step never comes to its `finally`.
    stored.work.add_done_callback(end)
    return {**begun, "status": "queued"}


async def _work(asked: Asked, place: Place, stored: Stored, begun: Mapping[str, Json]) -> None:
    message = INTERNAL
    try:
        if place.tape is not None:
            await _record(asked, place, stored)
        else:
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
    place.keep_ended({**begun, "status": "failed", "error": {"code": "server_error", "message": message}})


async def _record(asked: Asked, place: Place, stored: Stored) -> None:
    async with aclosing(asked.events()) as events:
        async for event in events:
            place.store.record(stored, frame(dumps(event), event["type"]))
            if event["type"] in LAST_EVENTS:
                # In the same turn of the event loop: who reads that it is complete will find it so.
                stored.work = None
                place.keep_last(event)


async def follow(request: web.Request, tape: Tape, start: int = 0) -> web.StreamResponse:
    """Send a response's stream from event number `start` on. A client that goes leaves the work as it is."""
    keep_alive = request.app[STAGES].config.sse_keep_alive_interval
    async with EventStream(request, keep_alive=keep_alive) as stream, aclosing(tape.follow(start)) as pieces:  # type: ignore[type-var]
        async for frames in pieces:
            await stream.write(frames)
        return await stream.close()
