"""Streams: the frames on the wire, what happens when they fail half-way, and clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web
from attrs import define, field
from serving import Server, until

from scaleout.errors import BadRequest, EngineFailed
from scaleout.routes.sse import EventStream, frame

from .conftest import Serve

POST = b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def test_frames() -> None:
    assert frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert frame(b"{}", "message_start") == b"event: message_start\ndata: {}\n\n"


def test_a_stream_is_headers_events_and_done(serve: Serve) -> None:
    async def tell(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, headers={"X-Extra": "1"}) as stream:
            await stream.send(b'{"a":1}')
            await stream.write(frame(b"2") + frame(b"3", "named"))
            return await stream.done()

    answer = serve(endpoint=tell, enable_request_id_headers=True).post("/test", {}, {"X-Request-Id": "mine"})
    assert answer.status == 200
    assert answer.body == b'data: {"a":1}\n\ndata: 2\n\nevent: named\ndata: 3\n\ndata: [DONE]\n\n'
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["X-Extra"] == "1"
    assert answer.headers["X-Request-Id"] == "mine"


def test_a_fault_before_the_first_event_is_an_ordinary_error(serve: Serve) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        async with EventStream(request):
            raise BadRequest("too long", "prompt")

    answer = serve(endpoint=fail).post("/test", {})
    assert answer.status == 400
    assert answer.error["param"] == "prompt"


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [(EngineFailed("a step failed"), 500, "a step failed"), (ValueError("/secret"), 500, "Internal server error")],
)
def test_a_fault_after_it_is_the_last_event_before_done(
    serve: Serve, raised: Exception, code: int, message: str
) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        async with EventStream(request) as stream:
            await stream.send(b"1")
            raise raised

    answer = serve(endpoint=fail).post("/test", {})
    assert answer.status == 200
    error = f'{{"error":{{"message":"{message}","type":"InternalServerError","param":null,"code":{code}}}}}'
    assert answer.body == f"data: 1\n\ndata: {error}\n\ndata: [DONE]\n\n".encode()


def test_a_fault_after_the_end_changes_nothing(serve: Serve) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        async with EventStream(request) as stream:
            await stream.done()
            raise ValueError("late")

    assert serve(endpoint=fail).post("/test", {}).body == b"data: [DONE]\n\n"


def test_an_http_1_0_client_gets_the_same_events(serve: Serve) -> None:
    async def tell(request: web.Request) -> web.StreamResponse:
        async with EventStream(request) as stream:
            await stream.send(b"1")
            return await stream.done()

    with serve(endpoint=tell).connect() as connection:
        connection.sendall(b"POST /test HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.endswith(b"\r\n\r\ndata: 1\n\ndata: [DONE]\n\n")


def test_silence_is_filled_with_comments(serve: Serve) -> None:
    async def wait(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=0.02) as stream:
            await stream.send(b"1")
            await until(lambda: stream.comments >= 2)
            await stream.send(b"2")
            return await stream.done()

    body = serve(endpoint=wait).post("/test", {}).body
    assert body.startswith(b"data: 1\n\n: keep-alive\n\n: keep-alive\n\n")
    assert body.endswith(b"data: 2\n\ndata: [DONE]\n\n")


def test_a_stream_that_speaks_often_has_no_comments(serve: Serve) -> None:
    async def speak(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=0.2) as stream:
            for _ in range(40):
                await stream.send(b"1")
                await asyncio.sleep(0.01)
            return await stream.done()

    assert b":" not in serve(endpoint=speak).post("/test", {}).body.replace(b"data:", b"")


def test_a_client_that_leaves_ends_the_stream(serve: Serve) -> None:
    ended = asyncio.Event()

    async def speak(request: web.Request) -> web.StreamResponse:
        async with EventStream(request) as stream:
            try:
                while True:
                    await stream.send(b"1")
                    await asyncio.sleep(0)
            finally:
                ended.set()

    server = serve(endpoint=speak)
    with server.connect() as connection:
        connection.sendall(POST)
        assert connection.recv(1000)
    server.within(ended.wait)
    assert server.get("/load").json == {"server_load": 0}


@define
class Flood:
    """An endpoint that writes as fast as it may."""

    stalled_after: float
    sent: int = 0
    request: web.Request | None = None
    ended: asyncio.Event = field(factory=asyncio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.request = request
        async with EventStream(request, stalled_after=self.stalled_after) as stream:
            try:
                while True:
                    await stream.send(b"x" * 1000)
                    self.sent += 1
                    await asyncio.sleep(0)
            finally:
                self.ended.set()

    async def held_back(self) -> None:
        await until(lambda: self.request is not None and self.request.protocol.writing_paused)

    async def sends_more_than(self, count: int) -> None:
        await until(lambda: self.sent > count)


def small_buffer(server: Server) -> socket.socket:
    """A connection whose receiving side takes little, so that a stalled reader is felt soon."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", server.port))
    return connection


def test_a_slow_reader_holds_the_writer_back(serve: Serve) -> None:
    flood = Flood(stalled_after=60)
    server = serve(endpoint=flood)
    with small_buffer(server) as connection:
        connection.sendall(POST)
        server.within(flood.held_back)
        held = flood.sent
        assert held * 1000 < 20_000_000
        taken = 0
        while taken < held * 1000:
            taken += len(connection.recv(65536))
        server.within(lambda: flood.sends_more_than(held))
    server.within(flood.ended.wait)


def test_a_reader_that_never_reads_again_is_given_up(serve: Serve) -> None:
    flood = Flood(stalled_after=0.2)
    server = serve(endpoint=flood)
    with small_buffer(server) as connection:
        connection.sendall(POST)
        server.within(flood.ended.wait)
    assert server.get("/load").json == {"server_load": 0}
