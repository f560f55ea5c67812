"""`python -m bench.remote [MODEL]`: what a front end adds to engines elsewhere, on one core, under 200 streams.

Two loads on `scaleout launch render MODEL --engine-url …`, which has one core to itself; everything else runs on the others:

* paced: an engine of this process sends every stream one token at a time, and this process reads what comes of it, so that one clock
  tells how long each token took through the front end;
* echo: two `scaleout serve --tokens-only --engine-backend echo`, as many short streamed chats as go through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import cast

import uvloop
from attrs import define, field

from bench.models import find_model
from bench.servers import Contender, Cores, Server, choose_cores, running

CHAT = b"/v1/chat/completions"
WORDS = 64
"""Tokens of one paced answer."""
SHORT = 16
"""Tokens of one answer of the echo engine."""
FIRST_ID = 1000


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each paced stream. Default: 20")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args(argv)
    cores = choose_cores()
    cores.pin(cores.load)
    with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as folder:
        for streams in dict.fromkeys((1, options.streams)):
            print(uvloop.run(measure_paced(options, streams, cores, Path(folder))), flush=True)
        print(measure_echo(options, cores, Path(folder)), flush=True)
    return 0


def front_over(urls: Sequence[str]) -> Contender:
    scaleout = str(Path(sys.executable).with_name("scaleout"))
    flags = ["--workers", "1", "--no-access-log", "--no-engine-check"]
    return Contender("front", [scaleout, "launch", "render"], [*flags, *(f"--engine-url={url}" for url in urls)])


# ---------------------------------------------------------------------------------------------- paced


@define(eq=False)
class Engine(asyncio.Protocol):
    """A connection to the paced engine. It speaks just enough to be taken for one that has `/inference/v1/generate`."""

    clock: Clock
    _seen: bytes = b""
    _transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, end, body = self._seen.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if not end or (length and len(body) < int(length[1])):
            return
        self._seen = b""
        assert self._transport is not None
        stream = re.search(rb'"request_id":"[a-z]*-?bench-(\d+)-', body)
        if stream is None:
            status = b"400 Bad Request" if head.startswith(b"POST /inference") else b"404 Not Found"
            status = b"200 OK" if head.startswith(b"GET /health") else status
            self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        asyncio.get_running_loop().create_task(self.clock.play(int(stream[1]), self._transport))


@define
class Clock:
    """When each token left, and how long it took. `pause`: seconds between two tokens of a stream."""

    pause: float
    sent: dict[int, list[float]] = field(factory=dict)
    took: list[float] = field(factory=list)
    faults: list[str] = field(factory=list)

    async def play(self, stream: int, out: asyncio.WriteTransport) -> None:
        sent = self.sent[stream] = []
        for place in range(WORDS):
            await asyncio.sleep(self.pause)
            choice = {"index": 0, "token_ids": [FIRST_ID + place], "finish_reason": None, "logprobs": None}
            if place == WORDS - 1:
                choice["finish_reason"] = "length"
            event = b"data: %b\n\n" % json.dumps({"request_id": "r", "choices": [choice]}).encode()
            sent.append(time.perf_counter())
            out.write(b"%x\r\n%b\r\n" % (len(event), event))
        done = b"data: [DONE]\n\n"
        out.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))


@define(eq=False)
class Reader(asyncio.Protocol):
    """One streamed chat. `over`: the number of tokens that came."""

    request: bytes
    sent: list[float] | None
    stream: int
    clock: Clock
    over: asyncio.Future[int]
    _tokens: int = 0
    _head: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._head = self._head or data[:300]
        for _ in range(data.count(b'"token_ids":[')):
            if self.sent is not None:
                self.clock.took.append(now - self.clock.sent[self.stream][self._tokens])
            self._tokens += 1
        if b"[DONE]" in data and not self.over.done():
            self.over.set_result(self._tokens)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(RuntimeError(self._head.decode(errors="replace")))


def chat_request(stream: int, tokens: int) -> bytes:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"What is {stream} + 2? Explain it to me step by step."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    data = json.dumps(body).encode()
    head = b"POST %b HTTP/1.1\r\nHost: front\r\nX-Request-Id: bench-%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (CHAT, stream, len(data)) + data


async def read_one(port: int, stream: int, tokens: int, clock: Clock, paced: bool) -> int:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()
    made = Reader(chat_request(stream, tokens), [] if paced else None, stream, clock, over)
    transport, _ = await loop.create_connection(lambda: made, "127.0.0.1", port)
    try:
        return await over
    finally:
        transport.abort()


async def measure_paced(options: argparse.Namespace, streams: int, cores: Cores, folder: Path) -> str:
    clock = Clock(1 / options.rate)
    engine = await asyncio.get_running_loop().create_server(lambda: Engine(clock), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    with ExitStack() as stack:
        start = running(front_over([url]), find_model(options.model), cores, folder)
        front: Server = await asyncio.to_thread(stack.enter_context, start)
        await asyncio.to_thread(front.settle)
        port = int(front.url.rsplit(":", 1)[1])
        numbers = iter(range(10**6))

        async def one_after_another(until: float) -> int:
            await asyncio.sleep(next(numbers) % 97 / 97 * clock.pause)  # streams do not step together
            tokens = 0
            while time.perf_counter() < until:
                tokens += await read_one(port, next(numbers), WORDS, clock, paced=True)
            return tokens

        await asyncio.gather(*(one_after_another(time.perf_counter() + 1) for _ in range(streams)))
        clock.took.clear()
        busy, began = front.busy(), time.perf_counter()
        counts = await asyncio.gather(*(one_after_another(began + options.seconds) for _ in range(streams)))
        passed, spent = time.perf_counter() - began, front.busy() - busy
    engine.close()
    took = sorted(clock.took)
    figures = {"median": median(took), "p99": took[int(len(took) * 0.99)]}
    shown = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in figures.items())
    chunk = spent / sum(counts)
    return (
        f"paced, {streams} streams of {options.rate:g} tokens/s: added per chunk {shown}; {sum(counts) / passed:,.0f} chunks/s, "
        f"{chunk * 1e6:.0f} µs of processor time a chunk ({spent / passed:.0%} of the core)"
    )


# ---------------------------------------------------------------------------------------------- echo


def measure_echo(options: argparse.Namespace, cores: Cores, folder: Path) -> str:
    model = find_model(options.model)
    scaleout = str(Path(sys.executable).with_name("scaleout"))
    flags = ["--tokens-only", "--engine-backend", "echo", "--no-access-log", "--max-waiting-requests", "4096"]
    with ExitStack() as stack:
        # The engines belong to the load's side: it is the front end that is measured.
        beside = Cores(cores.load, cores.load)
        engines = [
            stack.enter_context(running(Contender("engine", [scaleout, "serve"], flags), model, beside, folder))
            for _ in range(2)
        ]
        front = stack.enter_context(running(front_over([engine.url for engine in engines]), model, cores, folder))
        front.settle()
        port = int(front.url.rsplit(":", 1)[1])
        return uvloop.run(_ask_all(options, front, port))


async def _ask_all(options: argparse.Namespace, front: Server, port: int) -> str:
    clock = Clock(0)
    numbers = iter(range(10**6))

    async def one_after_another(until: float) -> int:
        answers = 0
        while time.perf_counter() < until:
            tokens = await read_one(port, next(numbers), SHORT, clock, paced=False)
            assert tokens == SHORT, tokens
            answers += 1
        return answers

    await asyncio.gather(*(one_after_another(time.perf_counter() + 1) for _ in range(options.streams)))
    busy, began = front.busy(), time.perf_counter()
    counts = await asyncio.gather(*(one_after_another(began + options.seconds) for _ in range(options.streams)))
    passed, spent = time.perf_counter() - began, front.busy() - busy
    answers = sum(counts)
    per_second, chunks = answers / passed, answers * SHORT / passed
    return (
        f"echo, {options.streams} streams at a time of {SHORT} tokens: {per_second:,.0f} requests/s, {chunks:,.0f} chunks/s, with "
        f"{spent / passed:.0%} of the core (engines and load share another); {spent / answers * 1e3:.2f} ms of processor time a request: "
        f"{answers / spent:,.0f} requests/s and {answers * SHORT / spent:,.0f} chunks/s for a whole core"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
