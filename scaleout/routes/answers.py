"""One error shape for everything that goes wrong, in the words of the API that was called."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from scaleout.codec import dumps
from scaleout.core import Json
from scaleout.errors import MethodNotAllowed, NotFound, Overloaded, RequestError
from scaleout.routes.lifecycle import RETRY_ELSEWHERE

MAX_MESSAGE = 4000
"""Characters of a message: a text may quote what was sent, and what was sent may be megabytes."""

INTERNAL = "Internal server error"

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def json_response(value: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer as compact JSON."""
    return raw_json(dumps(value), status, headers)


def raw_json(payload: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer whose JSON is written already."""
    response = web.Response(body=payload, status=status, headers=headers)
    response.headers["Content-Type"] = "application/json"
    return response


def error_body(error: RequestError, anthropic: bool = False) -> Json:
    """The error object as JSON values."""
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[:MAX_MESSAGE] + "…"
    message = message.encode("utf-8", "replace").decode()
    if anthropic:
        return {"type": "error", "error": {"type": ANTHROPIC_TYPES.get(error.status, "api_error"), "message": message}}
    body = error.body()
    body["error"]["message"] = message
    return body


def error_event(error: RequestError, path: str, number: int) -> tuple[Json, str | None]:
    """The last event of a stream that fails, and its name, as the API behind `path` has it. `number`: events before it."""
    if path.startswith("/v1/messages"):
        return error_body(error, anthropic=True), "error"
    body = error_body(error)
    if not path.startswith("/v1/responses"):
        return body, None
    # The API's own event is flat; its clients look for `error` as well, and raise it.
    told = {"code": "server_error" if error.status >= 500 else "invalid_request_error"}
    told |= {name: body["error"][name] for name in ("message", "param")}
    return {"type": "error", "sequence_number": number, **told, **body}, "error"


def error_response(
    error: RequestError, anthropic: bool = False, headers: Mapping[str, str] | None = None
) -> web.Response:
    """The answer to a request that failed, with the headers that belong to its kind."""
    extra = dict(headers or {})
    if error.status == 503:
        extra["Retry-After"] = str(error.retry_after if isinstance(error, Overloaded) else RETRY_ELSEWHERE)
    elif error.status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return json_response(error_body(error, anthropic), error.status, extra)


def from_http(error: web.HTTPException, path: str, hint: str | None) -> tuple[RequestError, dict[str, str]]:
    """aiohttp's own refusals, in our shape: the error, and the headers that must stay."""
    if error.status == 404:
        return NotFound(hint or f"There is no route {path}"), {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"Method {error.method} is not allowed for {path}; allowed: {allowed}"
        return MethodNotAllowed(message), {"Allow": allowed}
    refusal = RequestError(error.reason)
    refusal.status = error.status
    refusal.type = "Bad Request" if error.status < 500 else RequestError.type
    return refusal, {}
