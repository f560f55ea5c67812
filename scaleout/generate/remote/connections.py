"""Connections to one engine: opened, used for one exchange after the other, kept for a while. Knows bytes and no HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from attrs import define, field

MOST_UNREAD = 1 << 18
"""Bytes that may wait for a slow reader before the engine is held up."""


@define(eq=False)
class Connection(asyncio.Protocol):
    """`heard`: when something came, on the event loop's clock. `ended`: nothing more will come, because of `error` where it broke."""

    heard: float = 0.0
    ended: bool = False
    error: Exception | None = None
    used: bool = False
    """Whether an exchange went over it before the present one."""
    heard_since_use: bool = False
    """Whether something of the present exchange's answer has come."""
    _transport: asyncio.Transport | None = None
    _arrived: list[bytes] = field(factory=list)
    _unread: int = 0
    _reader: asyncio.Future[None] | None = None
    _writer: asyncio.Future[None] | None = None
    _held: bool = False
    _now: Callable[[], float] = field(factory=lambda: asyncio.get_running_loop().time)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.ended:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait while what was written cannot leave."""
        if self._held and not self.ended:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def read(self) -> bytes:
        """All that has arrived, at least a byte of it; b"" when the connection has ended. Raises `OSError` where it broke."""
        arrived = self._arrived
        if not arrived and not self.ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not arrived:
            if self.error is not None:
                raise self.error
            return b""
        data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
        arrived.clear()
        if self._unread > MOST_UNREAD and self._transport is not None:
            self._transport.resume_reading()
        self._unread = 0
        return data

    @property
    def has_unread(self) -> bool:
        return bool(self._arrived)

    def close(self) -> None:
        """End the connection at once: whatever is still under way is not wanted."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard, self.heard_since_use = self._now(), True
        self._arrived.append(data)
        before = self._unread
        self._unread = before + len(data)
        if before <= MOST_UNREAD < self._unread and self._transport is not None:
            self._transport.pause_reading()
        _wake(self._reader)
        if self._writer is not None:
            _wake(self._writer)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._held = True

    def resume_writing(self) -> None:
        self._held = False
        _wake(self._writer)


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper is not None and not sleeper.done():
        sleeper.set_result(None)


@define(eq=False)
class Connections:
    """All connections to one address. `keep`: seconds that an idle one is kept."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    keep: float
    _idle: list[Connection] = field(factory=list)
    _all: set[Connection] = field(factory=set)

    async def take(self, *, fresh: bool = False) -> Connection:
        """An idle connection, or a new one; `fresh`: a new one in any case. Raises `OSError`."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.ended and not connection.has_unread:
                connection.used, connection.heard_since_use = True, False
                return connection
            self._forget(connection)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port, ssl=self.tls)
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection, *, reusable: bool) -> None:
        """`reusable`: the exchange is over, and another may follow."""
        if not reusable or connection.ended or connection.has_unread:
            self._forget(connection)
            return
        self._idle.append(connection)
        asyncio.get_running_loop().call_later(self.keep, self._expire, connection, connection.heard)

    def _expire(self, connection: Connection, heard: float) -> None:
        """Close a connection that has been idle since."""
        if connection in self._idle and (connection.ended or connection.heard == heard):
            self._idle.remove(connection)
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()
