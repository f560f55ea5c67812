"""Where the engine thread's deltas wait for the coroutine that reads them. Everything here runs on that coroutine's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from attrs import define, evolve, field

from scaleout.core import TokenDelta

Event = tuple["Stream", TokenDelta | Exception]


@define(eq=False)
class Stream:
    """A mailbox for the `open` choices of one request. A slow reader finds its deltas merged, one per choice: memory stays bounded."""

    loop: asyncio.AbstractEventLoop
    open: int
    _pending: dict[int, TokenDelta] = field(factory=dict)
    _error: Exception | None = None
    _reader: asyncio.Future[None] | None = None

    def put(self, event: TokenDelta | Exception) -> None:
        if isinstance(event, Exception):
            self._error = event
        elif event.index in self._pending:
            self._pending[event.index] = merge(self._pending[event.index], event)
        else:
            self._pending[event.index] = event
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def deltas(self) -> AsyncIterator[TokenDelta]:
        """What arrives, until every choice has finished. Raises the error that the engine put."""
        while self.open or self._pending:
            if self._pending:
                delta = self._pending.pop(next(iter(self._pending)))
                self.open -= delta.finish_reason is not None
                yield delta
            elif self._error is not None:
                self.open = 0
                raise self._error
            else:
                self._reader = self.loop.create_future()
                await self._reader


def merge(earlier: TokenDelta, later: TokenDelta) -> TokenDelta:
    """Two deltas of one choice as one."""
    logprobs = None if earlier.logprobs is None else [*earlier.logprobs, *(later.logprobs or ())]
    token_ids = [*earlier.token_ids, *later.token_ids]
    return evolve(later, token_ids=token_ids, logprobs=logprobs, prompt=earlier.prompt or later.prompt)


def hand_over(events: Sequence[Event]) -> None:
    """One step's deltas, delivered in one call."""
    for stream, event in events:
        stream.put(event)
