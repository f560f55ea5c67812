"""What state the server is in, and how much work is running: who may enter, and when the last one has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from attrs import define, field

from scaleout.errors import Overloaded

RETRY_SOON = 1
RETRY_ELSEWHERE = 5
"""Seconds for `Retry-After`: a full server has a free place soon; one that loads or leaves does not."""


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


WHY = {State.LOADING: "The server is still loading its model", State.DRAINING: "The server is shutting down"}


@define
class Lifecycle:
    """One per application. Counts the requests that do work; health, metrics and aborts are never counted or refused.

    `limit` bounds the render, derender and tokenize requests at one time; the engine's own queue bounds generation.
    """

    limit: int
    state: State = State.LOADING
    in_flight: int = 0
    bounded: int = 0
    on_change: Callable[[float], None] = lambda _: None
    """Told of every change of `in_flight`, as the difference."""
    _empty: asyncio.Event = field(factory=asyncio.Event, init=False)

    def enter(self, bounded: bool) -> None:
        """Count one request in. Raises `Overloaded` at once where it has to be refused; nothing waits here."""
        if self.state is not State.READY:
            raise Overloaded(WHY[self.state], retry_after=RETRY_ELSEWHERE)
        if bounded:
            if self.bounded >= self.limit:
                raise Overloaded(f"The server already works on {self.limit} requests", retry_after=RETRY_SOON)
            self.bounded += 1
        self.in_flight += 1
        self.on_change(1)

    def leave(self, bounded: bool) -> None:
        self.bounded -= bounded
        self.in_flight -= 1
        self.on_change(-1)
        if not self.in_flight:
            self._empty.set()

    def open(self) -> None:
        """The model is loaded: let requests in, unless a signal has already begun the shutdown."""
        if self.state is State.LOADING:
            self.state = State.READY

    def drain(self) -> None:
        self.state = State.DRAINING

    async def wait_until_empty(self, seconds: float) -> bool:
        """Wait until no work runs, for `seconds` at most. Returns whether it came to that."""
        try:
            async with asyncio.timeout(seconds):
                while self.in_flight:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True
