"""One line for each request, in the log's own form."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web

from scaleout.core import Json
from scaleout.routes.keys import REQUEST_ID
from scaleout.routes.trace import trace_id

ACCESS_LOG = logging.getLogger("scaleout.access")

Log = Callable[[web.Request, int, float], None]
"""Told of a request, its status and its seconds."""


def log_line(request: web.Request, status: int, seconds: float) -> None:
    # The raw path: percent-encoded, so that no request can write a line of its own into the log.
    what = request.method, request.rel_url.raw_path
    ACCESS_LOG.info('%s "%s %s" %d %.1fms', request.remote, *what, status, seconds * 1000)


def log_fields(request: web.Request, status: int, seconds: float) -> None:
    """The same, with what programs look for as fields of their own."""
    told: dict[str, Json] = {
        "remote": request.remote,
        "method": request.method,
        "path": request.rel_url.raw_path,
        "status": status,
        "ms": round(seconds * 1000, 1),
    }
    for name, value in (("request_id", request.get(REQUEST_ID)), ("trace_id", trace_id(request))):
        if value is not None:
            told[name] = value
    ACCESS_LOG.info("%s %s %d", told["method"], told["path"], status, extra={"request": told})
