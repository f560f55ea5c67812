"""Everything that goes wrong on purpose. A route turns each into one JSON shape; nothing else ever reaches a client.

ScaleoutError
├── ConfigError            the server cannot start as asked            exit code 2 (also a ValueError)
└── RequestError           the request cannot be answered              one JSON error object
    ├── BadRequest         400  a value that makes no sense
    │   ├── InvalidField   400  a field of the wrong type or shape, with its JSON path
    │   └── BadState       400  a derender state that is damaged or foreign
    │       └── StaleState 400  a state of another model, format or version
    ├── Unauthorized       401
    ├── Forbidden          403
    ├── NotFound           404  unknown model or route
    ├── MethodNotAllowed   405
    ├── TooLarge           413  the body is over its limit
    ├── NotSupported       501  this server lacks the part that the request needs
    ├── Overloaded         503  try again later (Retry-After)
    └── EngineFailed       500 / 503 when the engine is dead
"""

from __future__ import annotations

from typing import Any


class ScaleoutError(Exception):
    """Root of the tree."""


class ConfigError(ScaleoutError, ValueError):
    """The configuration cannot work; the text lists every conflict."""


class RequestError(ScaleoutError):
    """A request that gets an error answer. `param` is a field name or JSON path; `value` is shown when it helps."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, param: str | None = None, value: Any = None) -> None:
        if param is not None and value is not None:
            message = f"{message} (parameter={param}, value={value})"
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The OpenAI error object: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


class BadRequest(RequestError):
    status = 400
    type = "BadRequestError"


class InvalidField(BadRequest):
    """Schema failure; `param` is the JSON path from `body`, and the text names it too."""

    type = "Bad Request"


class BadState(BadRequest):
    """`stream_state` is damaged, or was never ours."""


class StaleState(BadState):
    """`stream_state` belongs to another model, format or version."""


class Unauthorized(RequestError):
    status = 401
    type = "AuthenticationError"


class Forbidden(RequestError):
    status = 403
    type = "PermissionDeniedError"


class NotFound(RequestError):
    status = 404
    type = "NotFoundError"


class MethodNotAllowed(RequestError):
    status = 405
    type = "MethodNotAllowedError"


class TooLarge(RequestError):
    status = 413
    type = "RequestTooLargeError"


class NotSupported(RequestError):
    status = 501
    type = "NotImplementedError"


class Overloaded(RequestError):
    """Refused at once because a queue is full or the server drains; `retry_after` is in seconds."""

    status = 503
    type = "ServiceUnavailableError"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(RequestError):
    """A step failed (500), or the whole engine is gone (503, `dead`)."""

    def __init__(self, message: str, dead: bool = False) -> None:
        super().__init__(message)
        if dead:
            self.status = 503
            self.type = "ServiceUnavailableError"
