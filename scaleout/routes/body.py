"""Reading a JSON body: every bound is checked before the work that it protects."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from scaleout.codec import invalid, loads
from scaleout.core import Json
from scaleout.errors import BadRequest, InvalidField, RequestError, TooLarge
from scaleout.routes.keys import CONFIG

SLOW_BODY_AFTER = 60.0
"""Seconds for a body to arrive whole: a client that stops in the middle must not keep one of the server's places."""

LONG_LIST = 500
"""Members. Looking at each of so many takes as long as counting the brackets of a long body."""

JSON = "application/json"
JSON_ONLY = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
PLAIN_ONLY = "1 validation error:\n  Unsupported Media Type: Content-Encoding is not supported"


class RequestTimeout(RequestError):
    status = 408
    type = "RequestTimeoutError"


async def read_json(request: web.Request) -> dict[str, Json]:
    """The body as a JSON object.

    Raises `InvalidField` (wrong media type, no JSON, not an object, nested too deeply; `param` is `body` or
    `body.<offset>`), `TooLarge` (over `limits.max_body_bytes`, announced or found while reading), `RequestTimeout`.
    """
    check_media_type(request)
    return parse_object(await read_bytes(request), request.app[CONFIG].limits.max_json_depth)


def media_type(request: web.Request) -> str:
    """What the body says it is, without parameters; "" where it says nothing."""
    if request.headers.get("Content-Type") == JSON:
        return JSON  # what nearly all say: nothing to cut off
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def check_media_type(request: web.Request) -> None:
    if media_type(request) != JSON:
        raise InvalidField(JSON_ONLY)
    check_plain(request)


def check_plain(request: web.Request) -> None:
    """Raises `InvalidField` for a body that is encoded."""
    # Inflating is refused, not bounded: a few kilobytes can hold gigabytes, and clients of these APIs do not compress.
    encoding = request.headers.get("Content-Encoding")
    if encoding is not None and encoding.strip().lower() not in ("identity", ""):
        raise InvalidField(PLAIN_ONLY)


async def read_bytes(request: web.Request) -> bytes:
    """The raw body, at most `limits.max_body_bytes` long, whether it announces its length or comes in chunks."""
    limit = request.app[CONFIG].limits.max_body_bytes
    announced = request.content_length
    if announced is not None and announced > limit:
        raise too_large(limit)
    try:
        if request.content.is_eof():
            data = request.content.read_nowait()
            if len(data) > limit:
                raise too_large(limit)
            return data
        async with asyncio.timeout(SLOW_BODY_AFTER):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(limit) from None
    except web.RequestPayloadError:
        raise BadRequest("The body does not arrive as its headers announce it") from None
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {SLOW_BODY_AFTER:g} seconds") from None


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than the limit of {limit} bytes")


def parse_object(data: bytes, max_depth: int, path: str = "body") -> dict[str, Json]:
    """JSON text to an object at most `max_depth` containers deep. `path` is the object's own, for error texts."""
    if not data.strip():
        raise invalid(path, "Field required")
    try:
        value = loads(data)
    except json.JSONDecodeError as error:
        raise invalid(f"{path}.{error.pos}", f"JSON decode error at character {error.pos}: {error.msg}") from None
    if value is None:
        raise invalid(path, "Field required")
    if type(value) is not dict:
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    if not _is_shallow(value, max_depth, data):
        raise invalid(path, f"Input is nested deeper than {max_depth} levels")
    return value


def _is_shallow(value: Json, max_depth: int, data: bytes) -> bool:
    """Whether nothing in `value`, which is what `data` says, lies below more than `max_depth` containers."""
    level: list[Json] = [value]
    counted = False
    for _ in range(max_depth):
        if not counted and max(map(len, level)) > LONG_LIST:
            # Fewer brackets than the limit cannot nest deeper than the limit, and ids by the thousand hold none.
            if data.count(b"{") + data.count(b"[") <= max_depth:
                return True
            counted = True
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return True
    return False
