"""`/v1/messages/count_tokens`: how long the prompt of a message would be. It needs no engine, so whoever renders offers it."""

from __future__ import annotations

from aiohttp import web

from scaleout.core import ChatRequest
from scaleout.core.media import MediaSet
from scaleout.dialects import messages
from scaleout.routes.answers import json_response
from scaleout.routes.body import read_json
from scaleout.routes.keys import STAGES
from scaleout.routes.media import with_media
from scaleout.routes.requests import parse_request
from scaleout.routes.table import Route


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """How many tokens a message's prompt has: the prompt that /v1/messages makes, whatever its length."""
    body = await read_json(request)
    front = await request.app[STAGES].front()

    def work(media: MediaSet | None) -> int:
        wanted, _ = parse_request(request, messages, body, messages.parse_to_count)
        assert isinstance(wanted, ChatRequest)
        return len(front.renderer.render_prompt(wanted, media).token_ids)

    return json_response({"input_tokens": await with_media(request, work)})


ROUTES: tuple[Route, ...] = (("POST", f"{messages.PATH}/count_tokens", count_tokens),)
