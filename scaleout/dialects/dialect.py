"""What one public API shape has to offer. Each dialect is a module with these names; `DIALECTS` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Dialect(Protocol):
    """`NAME` for states and metrics, `PATH` of the coupled route, `ID_PREFIX` of answers, `NAMED_EVENTS`: streams name their events."""

    @property
    def NAME(self) -> str: ...
    @property
    def PATH(self) -> str: ...
    @property
    def ID_PREFIX(self) -> str: ...
    @property
    def NAMED_EVENTS(self) -> bool: ...

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
        """Whether a chunk of `delta` would carry anything."""
