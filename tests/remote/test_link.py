"""The way to one engine over real connections: kept, replaced, held up, secured."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trustme

from scaleout.core import Json
from scaleout.generate.options import RemoteOptions
from scaleout.generate.remote.faults import Lost, Unreachable
from scaleout.generate.remote.link import Link

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TWO = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":2}'
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def linked(
    handle: Handle, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", path: str = "", silence: float = 10.0
) -> AsyncIterator[Link]:
    """A link to a server that does with each connection what `handle` does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    url = f"{'https' if tls else 'http'}://{host}:{port}{path}"
    link = Link(url, RemoteOptions((url,), api_key="secret", connect_timeout=5, silence=silence))
    async with server:
        yield link
        link.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head + await reader.readexactly(int(length or 0))


async def ask(link: Link, body: bytes = b"{}") -> list[Json]:
    """All events of one answer."""
    async with aclosing(link.call().events("/generate", body, {"traceparent": "t"})) as arrivals:  # type: ignore[type-var]
        return [event async for events in arrivals for event in events]


async def test_one_connection_after_another_request() -> None:
    seen: list[bytes] = []
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            seen.append(await read_request(reader))
            if len(seen) % 2:
                writer.write(TWO)
            else:
                writer.write(HEAD + b'f\r\ndata: {"b":1}\n\n\r\n')
                await writer.drain()
                writer.write(b"0\r\n\r\n")

    async with linked(handle, path="/base") as link:
        assert [await ask(link), await ask(link), await ask(link)] == [[{"a": 2}], [{"b": 1}], [{"a": 2}]]
        assert (await link.get("/health")).status == 200
    assert connections == 1
    assert seen[0].startswith(b"POST /base/generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer secret\r\n" in seen[0]
    assert b"\r\ntraceparent: t\r\n" in seen[0]
    assert seen[3].startswith(b"GET /base/health HTTP/1.1\r\n")


async def test_a_connection_that_was_closed_while_it_lay_idle_is_replaced() -> None:
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(TWO)
        if not closed.is_set():
            await reader.readexactly(1)  # the next request arrives, and nobody answers it
            closed.set()

    async with linked(handle) as link:
        assert await ask(link) == [{"a": 2}]
        assert await ask(link) == [{"a": 2}]
        assert closed.is_set()


async def test_a_new_connection_that_ends_without_an_answer_is_lost() -> None:
    asked = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_request(reader)
        asked += 1

    async with linked(handle) as link:
        with pytest.raises(Lost, match="before the answer began"):
            await ask(link)
    assert asked == 1


async def test_an_engine_may_answer_before_it_has_read_a_long_request() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(TWO)
        await writer.drain()
        await asyncio.Event().wait()

    async with linked(handle) as link:
        assert await asyncio.wait_for(ask(link, b"x" * (64 << 20)), 5) == [{"a": 2}]


async def test_a_slow_reader_holds_the_engine_up() -> None:
    sent = 0
    piece = b"data: [%b]\n\n" % b",".join([b"1"] * 4000)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(HEAD)
        for _ in range(10_000):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")

    async with linked(handle) as link, aclosing(link.call().events("/generate", b"{}")) as arrivals:  # type: ignore[type-var]
        count = len(await anext(arrivals))
        before = -1
        while sent != before:  # until nothing more leaves
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 10_000
        async for events in arrivals:
            count += len(events)
        assert count == 10_000


async def test_silence_ends_a_stream_but_not_one_that_nobody_reads() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b'f\r\ndata: {"b":1}\n\n\r\n')
        await asyncio.sleep(0.3)
        writer.write(b'f\r\ndata: {"b":2}\n\n\r\n')
        await asyncio.Event().wait()

    async with linked(handle, silence=0.5) as link, aclosing(link.call().events("/generate", b"{}")) as arrivals:  # type: ignore[type-var]
        assert await anext(arrivals) == [{"b": 1}]
        await asyncio.sleep(1)
        assert await anext(arrivals) == [{"b": 2}]
        with pytest.raises(Lost, match=r"sent nothing for 0\.5 seconds"):
            await anext(arrivals)


async def test_an_engine_behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(TWO)

    async with linked(handle, context, "localhost") as link:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await ask(link)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with linked(handle, context, "localhost") as link:
        assert await ask(link) == [{"a": 2}]
        assert await ask(link) == [{"a": 2}]
