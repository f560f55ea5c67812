"""W3C trace context: what a caller sends of it goes on to engines elsewhere and into the log."""

from __future__ import annotations

import re

from aiohttp import web

VALID = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?").fullmatch
MAX_STATE = 8192
"""Characters of `tracestate`. The standard asks for 512 at least; more than one header line holds is nobody's state."""


def trace_headers(request: web.Request) -> dict[str, str] | None:
    """`traceparent`, and `tracestate` beside it; None where there is none that is valid, as the standard wants it."""
    parent = request.headers.get("traceparent")
    if parent is None or VALID(parent.strip()) is None:
        return None
    trace = {"traceparent": parent.strip()}
    state = ",".join(request.headers.getall("tracestate", ()))
    if state and len(state) <= MAX_STATE:
        trace["tracestate"] = state
    return trace


def trace_id(request: web.Request) -> str | None:
    """The id that all calls of one trace share; None without a valid `traceparent`."""
    found = VALID(request.headers.get("traceparent", "").strip())
    return None if found is None else found[1]
