"""What the render and the coupled routes of a dialect do first with a body."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from scaleout.core import Json
from scaleout.dialects import Dialect, Request
from scaleout.errors import BadRequest
from scaleout.routes.keys import CONFIG, METRICS, STAGES

Parse = Callable[[Mapping[str, Json]], Request]


def parse_request(
    request: web.Request, dialect: Dialect, body: Mapping[str, Json], parse: Parse | None = None
) -> tuple[Request, str]:
    """The request, and the model's name that its answer carries. Unknown fields are ignored, and counted.

    `parse`: in place of the dialect's own.

    Raises `BadRequest` for what the dialect refuses, `NotFound` for another model.
    """
    unknown = len(body.keys() - dialect.FIELDS)
    if unknown:
        request.app[METRICS].unknown_fields.inc(unknown)
    wanted = (parse or dialect.parse)(body)
    most = request.app[CONFIG].limits.max_request_id_chars
    if len(wanted.options.request_id or "") > most:
        raise BadRequest(f"request_id is longer than {most} characters", "request_id")
    return wanted, request.app[STAGES].served(wanted.options.model)
