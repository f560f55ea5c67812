"""Server-sent events: one writer for every stream that a route sends."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

STALLED_AFTER = 60.0
"""Seconds after which a client that leaves a full buffer unread is given up: it must not hold a place for ever."""


def frame(payload: bytes, event: str | None = None) -> bytes:
    """One event on the wire. `payload` is JSON in one line, as `codec.dumps` writes it."""
    if event is None:
        return b"data: %b\n\n" % payload
    return b"event: %b\ndata: %b\n\n" % (event.encode(), payload)


class EventStream:
    """An answer that grows: `async with EventStream(request) as stream: await stream.send(payload)`.

    The status line goes out with the first event, so that whatever fails before it still gets an ordinary error answer.
    After it, the error middleware finds the stream in the request and ends it with an error event. A client that goes
    away cancels the code that writes here; one that reads slowly holds `send` back.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        keep_alive: float = 0.0,
        headers: dict[str, str] | None = None,
        stalled_after: float = STALLED_AFTER,
    ) -> None:
        """`keep_alive`: seconds of silence after which a comment is sent; 0 sends none."""
        self.response = web.StreamResponse(headers=HEADERS | (headers or {}))
        self.closed = False
        self.comments = 0
        self.sent = 0
        """Events that are on their way."""
        self._request = request
        self._keep_alive = keep_alive
        self._stalled_after = stalled_after
        self._writes_begun = 0
        self._writes_ended = 0
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        stream: EventStream = self
        self._request[STREAM] = stream
        self._watchers.append(asyncio.create_task(self._give_up_stalled_client()))
        if self._keep_alive > 0:
            self._watchers.append(asyncio.create_task(self._comfort_waiting_client()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for watcher in self._watchers:
            watcher.cancel()

    @property
    def started(self) -> bool:
        """Whether the status line is out, so that an error can only be one more event."""
        return self.response.prepared

    async def send(self, payload: bytes, event: str | None = None) -> None:
        """Send one event. `payload` is JSON."""
        await self.write(frame(payload, event), 1)

    async def write(self, frames: bytes, events: int = 0) -> None:
        """Send finished frames: `events` that are ready together cost one system call."""
        self.sent += events
        self._writes_begun += 1
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(frames)
        self._writes_ended += 1

    async def done(self) -> web.StreamResponse:
        """Say `[DONE]` and close."""
        await self.write(DONE)
        return await self.close()

    async def close(self) -> web.StreamResponse:
        """Close without a last word, for dialects that end with an event of their own."""
        self.closed = True
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write_eof()
        return self.response

    async def _comfort_waiting_client(self) -> None:
        begun = 0
        while True:
            await asyncio.sleep(self._keep_alive)
            if self._writes_begun == begun == self._writes_ended:
                await self.write(KEEP_ALIVE)
                self.comments += 1
            begun = self._writes_begun

    async def _give_up_stalled_client(self) -> None:
        begun = 0
        while True:
            await asyncio.sleep(self._stalled_after)
            if self._writes_begun == begun != self._writes_ended and self._request.transport is not None:
                self._request.transport.abort()
            begun = self._writes_begun


STREAM: web.RequestKey[EventStream] = web.RequestKey("stream", EventStream)
"""Where the error middleware finds a stream that has begun."""
