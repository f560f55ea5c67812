"""The shape of a route table, and how one becomes part of an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from attrs import frozen

from scaleout.errors import RequestError
from scaleout.routes.answers import error_response
from scaleout.routes.keys import LIFECYCLE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Handler]
"""Method, path, handler."""

VARIABLES = {"{response_id}": r"{response_id:(?!(?:de)?render(?:/|$))[^/]+}"}
"""Parts of paths that vary, with what they may be: the name of another route is no id, whether or not that route is here."""


@frozen
class RouteTable:
    """Routes that come and go together.

    `works`: its requests are counted, refused while the server loads or drains, and waited for before it exits.
    `bounded`: as many at one time as `limits.max_concurrent_work` allows.
    """

    name: str
    routes: tuple[Route, ...]
    works: bool = False
    bounded: bool = False


def admit(handler: Handler, bounded: bool) -> Handler:
    """Let a request in only while there is room for it."""

    async def admitted(request: web.Request) -> web.StreamResponse:
        lifecycle = request.app[LIFECYCLE]
        lifecycle.enter(bounded)
        try:
            return await handler(request)
        finally:
            lifecycle.leave(bounded)

    return admitted


async def expect(request: web.Request) -> web.StreamResponse | None:
    """`Expect: 100-continue` is answered; what else there is to expect is refused in the one shape."""
    if request.headers["Expect"].strip().lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None
    refusal = RequestError("Only Expect: 100-continue is supported")
    refusal.status, refusal.type = 417, "Bad Request"
    return error_response(refusal)


def mount(app: web.Application, tables: Iterable[RouteTable], root_path: str) -> dict[str, str]:
    """Add the routes of `tables`, with and without the proxy's prefix and a trailing slash.

    Returns the path of the table for each path that was added.
    """
    named: dict[str, str] = {}
    for table in tables:
        for method, path, handler in table.routes:
            guarded = admit(handler, table.bounded) if table.works else handler
            for prefix in dict.fromkeys(("", root_path)):
                for spelled in (prefix + path, prefix + path + "/"):
                    pattern = spelled
                    for variable, values in VARIABLES.items():
                        pattern = pattern.replace(variable, values)
                    app.router.add_route(method, pattern, guarded, expect_handler=expect)
                    if method == "GET":
                        app.router.add_route("HEAD", pattern, guarded, expect_handler=expect)
                    named[spelled] = path
    return named
