"""The ordinary endpoints of chat, completions and messages. Those of responses are in `responses`, for they remember."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from scaleout.core import Json
from scaleout.dialects import Dialect, chat, completions, messages
from scaleout.errors import BadRequest
from scaleout.routes import responses
from scaleout.routes.answers import json_response
from scaleout.routes.asking import ask, send_stream
from scaleout.routes.body import read_json
from scaleout.routes.table import Handler, Route


async def answer(request: web.Request, dialect: Dialect, body: Mapping[str, Json]) -> web.StreamResponse:
    asked = await ask(request, dialect, body)
    if asked.wanted.options.stream:
        return await send_stream(request, asked)
    return json_response(await asked.answer())


def make_handler(dialect: Dialect) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request, dialect, await read_json(request))

    return handle


async def invocations(request: web.Request) -> web.StreamResponse:
    """What clients of a SageMaker endpoint send: a body of any OpenAI shape, told apart by its own field."""
    body = await read_json(request)
    if "messages" in body:
        return await answer(request, chat, body)
    if "prompt" in body:
        return await answer(request, completions, body)
    if "input" in body:
        return await responses.answer(request, body)
    raise BadRequest("The body must have `messages` (chat), `prompt` (completions) or `input` (responses)", "body")


ROUTES: tuple[Route, ...] = (
    *(("POST", dialect.PATH, make_handler(dialect)) for dialect in (chat, completions, messages)),
    *responses.ROUTES,
    ("POST", "/invocations", invocations),
)
