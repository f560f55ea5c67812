"""What happens around every request: counting, one error shape, request ids, keys. Knows no route."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

from aiohttp import web
from aiohttp.typedefs import Middleware

from scaleout.codec import dumps
from scaleout.errors import BadRequest, RequestError
from scaleout.routes.access_log import Log
from scaleout.routes.answers import INTERNAL, error_event, error_response, from_http
from scaleout.routes.auth import KeyRing
from scaleout.routes.keys import REQUEST_ID
from scaleout.routes.metrics import UNMATCHED, Metrics
from scaleout.routes.sse import STREAM, EventStream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOG = logging.getLogger(__name__)

CLIENT_GONE = 499


def route_path(request: web.Request) -> str | None:
    """The path in the route table that this request reached; None where there is none."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def count_requests(
    metrics: Metrics, labels: Mapping[str, str], log: Log | None = None, quiet: frozenset[str] = frozenset()
) -> Middleware:
    """Count and time every answer. `labels`: label by mounted path. `log` is told of all but those with `quiet` labels."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        status = CLIENT_GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            seconds = time.perf_counter() - began
            path = route_path(request)
            label = UNMATCHED if path is None else labels.get(path, UNMATCHED)
            metrics.count_request(label, request.method, status, seconds)
            if status == 503:
                metrics.refused.inc()
            if log is not None and label not in quiet:
                log(request, status, seconds)

    return count


def shape_errors(hints: Mapping[str, str], root_path: str) -> Middleware:
    """Turn everything that is raised into one JSON error. `hints`: where to find paths that are not here."""

    @web.middleware
    async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers: dict[str, str] = {}
        try:
            return await handler(request)
        except RequestError as caught:
            error = caught
            if error.status == 500:
                LOG.error("%s %s: %s", request.method, request.rel_url.raw_path, error.message)
        except web.HTTPException as caught:
            if caught.status < 400:
                raise
            path = bare_path(request, root_path)
            error, headers = from_http(caught, path, hints.get(path))
        except Exception as caught:
            if isinstance(caught, ConnectionError) and client_is_gone(request):
                return leave(request)
            LOG.exception("%s %s failed", request.method, request.rel_url.raw_path)
            error = RequestError(INTERNAL)
        # Its frames hold the request's whole body, and this frame holds the error: a circle that keeps megabytes for a while.
        error.__traceback__ = None
        anthropic = bare_path(request, root_path).startswith("/v1/messages")
        stream: EventStream | None = request.get(STREAM)
        if stream is not None and stream.started:
            if stream.closed:
                return stream.response
            return await end_stream(request, stream, error, bare_path(request, root_path))
        return error_response(error, anthropic, headers)

    return shape


async def end_stream(request: web.Request, stream: EventStream, error: RequestError, path: str) -> web.StreamResponse:
    """The status line is long gone: say it as the last event, and close as the API closes its streams."""
    event, name = error_event(error, path, stream.sent)
    try:
        await stream.send(dumps(event), name)
        return await (stream.done() if name is None else stream.close())
    except ConnectionError:
        return leave(request)


def client_is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def leave(request: web.Request) -> web.StreamResponse:
    """Nobody reads any more: whatever has been sent is the answer."""
    stream: EventStream | None = request.get(STREAM)
    return stream.response if stream is not None and stream.started else web.Response(status=CLIENT_GONE)


def bare_path(request: web.Request, root_path: str) -> str:
    """The decoded path without the prefix of a proxy."""
    path = request.path
    if root_path and path.startswith(root_path + "/"):
        return path[len(root_path) :]
    return path


def identify_requests(max_chars: int, answer_header: bool) -> Middleware:
    """Take the caller's `X-Request-Id`; with `answer_header`, give one to a request without."""
    fit = re.compile(rf"[\x21-\x7e]{{1,{max_chars}}}").fullmatch

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id")
        if given is not None:
            if not fit(given):
                raise BadRequest(f"X-Request-Id must be 1 to {max_chars} visible ASCII characters", "X-Request-Id")
            request[REQUEST_ID] = given
        elif answer_header:
            request[REQUEST_ID] = uuid4().hex
        return await handler(request)

    return identify


async def write_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """A signal on every answer, streams included: `X-Request-Id`."""
    response.headers["X-Request-Id"] = request.get(REQUEST_ID) or uuid4().hex


def require_key(keys: KeyRing, open_paths: frozenset[str]) -> Middleware:
    """Let only key holders past `open_paths`. The route that was reached decides, not the text of the path."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if route_path(request) not in open_paths:
            keys.check(request)
        return await handler(request)

    return guard
