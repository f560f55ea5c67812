"""What one public API shape has to offer. Each dialect is a module with these names; `DIALECTS` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from scaleout.core import (
    AnswerHead,
    ChatRequest,
    ChoiceAnswer,
    ChoiceDelta,
    CompletionRequest,
    Json,
    Usage,
)

Request = ChatRequest | CompletionRequest

Gather = Callable[[Sequence[Json]], list[Json]]
"""The next events of one stream → the same events, completed from those before. It remembers the whole answer."""


class Dialect(Protocol):
    """`NAME` for states and metrics, `PATH` of the coupled route, `ID_PREFIX` of requests' ids.

    `FIELDS`: names of a request's known fields. `NAMED_EVENTS`: streams name their events, and end with their usage (`parse` asks
    for it) instead of `[DONE]`.
    """

    @property
    def NAME(self) -> str: ...
    @property
    def PATH(self) -> str: ...
    @property
    def ID_PREFIX(self) -> str: ...
    @property
    def NAMED_EVENTS(self) -> bool: ...
    @property
    def FIELDS(self) -> frozenset[str]: ...

    def name_request(self, wanted: Request, traced: str | None) -> str:
        """The id of a request; `traced` is its X-Request-Id."""

    def parse(self, body: Mapping[str, Json]) -> Request:
        """A request body as a request noun. Raises `InvalidField` with the JSON path, or `BadRequest`."""

    def response(
        self, head: AnswerHead, request: Request | None, answers: Sequence[ChoiceAnswer], usage: Usage
    ) -> Json:
        """A whole answer."""

    def open_stream(self, request: Request | None) -> dict[str, Json]:
        """The `carry` of one choice: what its chunks must remember, as small JSON."""

    def chunk(
        self, head: AnswerHead, carry: dict[str, Json], delta: ChoiceDelta | None, usage: Usage | None
    ) -> tuple[dict[str, Json], list[Json]]:
        """The changed `carry`, and the events that one delta gives (`delta` None: the answer is over, here is its usage).

        With `NAMED_EVENTS` there may be any number, each with its name as `type`; else it is one chunk.
        """

    def says_something(self, delta: ChoiceDelta, carry: Mapping[str, Json]) -> bool:
        """Whether a chunk of `delta` would carry anything. `carry` is the one before it."""

    def gather(self, request: Request | None) -> Gather | None:
        """For who holds a whole stream in memory: completes what `chunk` leaves empty because it does not remember the answer."""
