"""What is asked of a response after it was answered: the response again, its stream, its input; to cancel it, and to forget it."""

from __future__ import annotations

from aiohttp import web

from scaleout.codec import invalid
from scaleout.core import Json
from scaleout.dialects import responses as dialect
from scaleout.dialects.responses_listing import list_items
from scaleout.errors import BadRequest
from scaleout.pipeline.response_store import Stored, not_found, read_turns
from scaleout.routes import work
from scaleout.routes.answers import json_response, raw_json
from scaleout.routes.auth import owner_of
from scaleout.routes.keys import RESPONSES
from scaleout.routes.responses_background import Place, follow
from scaleout.routes.table import Route

MOST_ITEMS = 100
FEW_ITEMS = 20
"""Items of a page: as many as OpenAI gives at most, and unasked."""


async def retrieve(request: web.Request) -> web.StreamResponse:
    """The response as it was answered, or as far as it has come; `stream=true`: the events of one made in the background, again"""
    stored = find(request)
    if request.query.get("stream", "").lower() not in ("1", "true"):
        return raw_json(stored.payload)
    if stored.tape is None:
        raise BadRequest("Only a response that was made with background and stream can be streamed again", "stream")
    return await follow(request, stored.tape, read_number(request, "starting_after", -1, -1, 1 << 53) + 1)


async def input_items(request: web.Request) -> web.StreamResponse:
    """What the response answers, item by item, the conversation before it included"""
    stored, response_id = find(request), request.match_info["response_id"]
    limit = read_number(request, "limit", FEW_ITEMS, 1, MOST_ITEMS)
    order, after = request.query.get("order", "desc"), request.query.get("after")
    if order not in ("asc", "desc"):
        raise invalid("order", "Input should be 'asc' or 'desc'")

    def show() -> Json:
        return list_items(read_turns(stored.turns), response_id, after, limit, order == "asc")

    return json_response(await work.run(request, show, sum(map(len, stored.turns))))


async def cancel(request: web.Request) -> web.StreamResponse:
    """End a response that is being made in the background. One that is done stays as it is."""
    stored = find(request)
    response = stored.response
    if not response["background"]:
        error = BadRequest("Cannot cancel a synchronous response.", "response_id")
        error.type = "invalid_request_error"
        raise error
    if stored.work is not None:
        place = Place(request.app[RESPONSES], owner_of(request), stored.turns, stored.tape)
        stored = place.keep_ended({**response, "status": "cancelled"})
    return raw_json(stored.payload)


async def delete(request: web.Request) -> web.StreamResponse:
    """Forget a response."""
    store, response_id = request.app[RESPONSES], request.match_info["response_id"]
    if not store.drop(owner_of(request), response_id):
        raise not_found(response_id, "response_id", store.closed)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def find(request: web.Request) -> Stored:
    return request.app[RESPONSES].find(owner_of(request), request.match_info["response_id"])


def read_number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query."""
    text = request.query.get(name)
    if text is None:
        return default
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None
    if number is None or not least <= number <= most:
        raise invalid(name, f"Input should be a whole number from {least} to {most}")
    return number


ONE = dialect.PATH + "/{response_id}"
ROUTES: tuple[Route, ...] = (
    ("GET", ONE, retrieve),
    ("GET", f"{ONE}/input_items", input_items),
    ("DELETE", ONE, delete),
    ("POST", f"{ONE}/cancel", cancel),
)
