"""Cross-origin requests: which pages of other origins a browser lets ask this server. Installed only where some may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware
from attrs import frozen

from scaleout.config.web import WebOptions
from scaleout.errors import BadRequest

ALWAYS_ALLOWED = frozenset(("accept", "accept-language", "content-language", "content-type"))
KEEP_FOR = "600"
"""Seconds that a browser may remember the answer to a preflight."""

Signal = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


@frozen
class Cors:
    """What is allowed to whom."""

    options: WebOptions

    def allows(self, origin: str) -> bool:
        return "*" in self.options.allowed_origins or origin in self.options.allowed_origins

    def headers(self, origin: str) -> dict[str, str]:
        """For an answer to `origin`: without them the browser keeps the answer from the page."""
        headers = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "X-Request-Id"}
        if "*" in self.options.allowed_origins:
            headers["Access-Control-Allow-Origin"] = "*"
        if self.options.allow_credentials:
            headers["Access-Control-Allow-Credentials"] = "true"
        return headers

    def preflight(self, request: web.Request) -> dict[str, str]:
        """The answer to a browser that asks before it asks. Raises `BadRequest` naming what is not allowed."""
        origin, method = request.headers["Origin"], request.headers["Access-Control-Request-Method"]
        asked = [name.strip() for name in request.headers.get("Access-Control-Request-Headers", "").split(",")]
        wanted = [name for name in asked if name]
        if not self.allows(origin):
            raise BadRequest("Disallowed CORS origin", "Origin")
        if not {"*", method} & set(self.options.allowed_methods):
            raise BadRequest("Disallowed CORS method", "Access-Control-Request-Method")
        allowed = {name.lower() for name in self.options.allowed_headers} | ALWAYS_ALLOWED
        if "*" not in allowed and not {name.lower() for name in wanted} <= allowed:
            raise BadRequest("Disallowed CORS headers", "Access-Control-Request-Headers")
        headers = {"Access-Control-Allow-Methods": method, "Access-Control-Max-Age": KEEP_FOR}
        if wanted:
            headers["Access-Control-Allow-Headers"] = ", ".join(wanted)
        return headers


def answer_preflights(cors: Cors) -> Middleware:
    """Answer preflights, whatever the path: they come without a key, and what they ask about is not done yet."""

    @web.middleware
    async def preflight(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if (
            request.method == "OPTIONS"
            and "Origin" in request.headers
            and "Access-Control-Request-Method" in request.headers
        ):
            return web.Response(headers=cors.preflight(request))
        return await handler(request)

    return preflight


def write_cors(cors: Cors) -> Signal:
    """A signal on every answer, errors and streams included."""

    async def write(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and cors.allows(origin):
            response.headers.update(cors.headers(origin))

    return write
