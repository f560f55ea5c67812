"""How long an engine may be silent: it counts while a call waits for it, and not while what it sent is being worked on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from scaleout.generate.options import RemoteOptions
from scaleout.generate.remote.faults import Lost
from scaleout.generate.remote.link import Link, open_pool

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_silence_counts_while_a_call_waits() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(HEAD + b'f\r\ndata: {"b":1}\n\n\r\n')
        await asyncio.sleep(0.2)
        writer.write(b'f\r\ndata: {"b":2}\n\n\r\n')
        await reader.read()  # until the call is given up
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = RemoteOptions((url,), silence=0.5)
    async with server, open_pool(options) as pool:
        call = Link(url, options, pool).call()
        async with aclosing(call.events("/generate", b"{}")) as arrivals:  # type: ignore[type-var]
            assert await anext(arrivals) == [{"b": 1}]
            await asyncio.sleep(1)
            assert await anext(arrivals) == [{"b": 2}]
            with pytest.raises(Lost, match=r"sent nothing for 0\.5 seconds"):
                await anext(arrivals)
