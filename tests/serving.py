"""A server of this process on a loopback port, and a client that sees every byte of its answers."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

from aiohttp import web
from attrs import frozen

T = TypeVar("T")

PATIENCE = 150.0
"""Seconds for what takes one or two: it ends a test that hangs, and must not end one on a machine with other work."""


@frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, after a check that it is the one shape."""
        assert self.headers["Content-Type"] == "application/json"
        assert list(self.json) == ["error"]
        error: dict[str, Any] = self.json["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert error["code"] == self.status
        assert error["message"]
        return error


@frozen
class Server:
    app: web.Application
    port: int
    loop: asyncio.AbstractEventLoop

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own. A `body` that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent = {"Content-Type": "application/json"} | sent
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("POST", path, body, headers)

    def connect(self) -> socket.socket:
        """A bare connection, for requests that no client library would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def within(self, work: Callable[[], Awaitable[T]], timeout: float = PATIENCE) -> T:
        """Run `work` on the server's own event loop."""

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout)


@contextmanager
def serving(app: web.Application, port: int = 0) -> Iterator[Server]:
    """Start `app` in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(app, shutdown_timeout=2)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        bound: int = runner.addresses[0][1]
        return bound

    try:
        yield Server(app, asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE), loop)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE)
        asyncio.run_coroutine_threadsafe(close_the_rest(loop), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def close_the_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Transports are closed in the turns after they were told to."""
    await loop.shutdown_asyncgens()
    for _ in range(4):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Give the event loop turns until something has come true; the caller's time limit ends a vain wait."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def read_answer(connection: socket.socket) -> Answer:
    """The answer that comes on a bare connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return Answer(response.status, response.headers, response.read())
