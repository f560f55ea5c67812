"""Who is being served: lets choices in up to a bound, finds them by request id, and waits for the last to leave. Knows no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from attrs import define, field

from scaleout.core import GenerateRequest
from scaleout.errors import Overloaded

Work = TypeVar("Work")
"""What an engine keeps of a request under way."""


@define(eq=False)
class Attendance(Generic[Work]):
    """`places`: choices that may run or wait at once. Request ids need not be unique."""

    places: int
    taken: int = 0
    _live: dict[str, list[Work]] = field(factory=dict)
    _left: asyncio.Event | None = None

    @contextmanager
    def enter(self, request: GenerateRequest, work: Work) -> Iterator[None]:
        """Holds the request's places until the block ends. Raises Overloaded when they are not to be had."""
        n = request.sampling_params.n
        if self._left is not None:
            raise Overloaded("The server is shutting down.")
        if self.taken + n > self.places:
            raise Overloaded(f"The engine is full: {self.taken} choices run or wait. Try again later.")
        self.taken += n
        same_id = self._live.setdefault(request.request_id, [])
        same_id.append(work)
        try:
            yield
        finally:
            self.taken -= n
            same_id.remove(work)
            if not same_id:
                del self._live[request.request_id]
            if self._left is not None and not self._live:
                self._left.set()

    def named(self, request_ids: Iterable[str]) -> list[Work]:
        """Unknown ids are passed over."""
        return [work for request_id in request_ids for work in self._live.get(request_id, ())]

    def everybody(self) -> list[str]:
        return list(self._live)

    async def drain(self, grace: float) -> None:
        """From now on nobody enters. Returns when all have left, or after `grace` seconds."""
        self._left = self._left or asyncio.Event()
        if self._live:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), grace)
