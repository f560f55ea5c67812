"""`python -m bench.remote [MODEL]`: what a front end adds to engines elsewhere, on one core, under 200 streams.

The loads on `scaleout launch render MODEL --engine-url …`, which has one core to itself; everything else runs on another:

* spread: an engine in this process sends every stream so many tokens a second, no two streams at the same moment if it can be helped;
* steps: the same rate, and all streams get their tokens at once, as from an engine that makes one token of everybody in each step. The
  last of them waits for all others;
* echo: two `scaleout serve --tokens-only --engine-backend echo`, as many short streamed chats as go through.

In the first two this process also reads what comes out, so that one clock tells how long each token took; and it reads the engine itself
first, in the same way. What the front end adds is the difference.
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
from typing import cast

import uvloop
from attrs import define, field, frozen

from bench.models import find_model
from bench.servers import Contender, Cores, Server, choose_cores, running

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
SHORT = 16
"""Tokens of one answer of the echo engine."""
TICK = 0.001
"""Seconds between two looks at what is due: an event loop's timers are no finer."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream. Default: 20")
    parser.add_argument("--tokens", type=int, default=256, help="of one answer. Default: 256")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args(argv)
    cores = choose_cores()
    cores.pin(cores.load)
    with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as folder:
        for streams, at_once in ((1, False), (options.streams, False), (options.streams, True)):
            print(uvloop.run(measure_paced(options, streams, at_once, cores, Path(folder))), flush=True)
        print(measure_echo(options, cores, Path(folder)), flush=True)
    return 0


def front_over(urls: Sequence[str]) -> Contender:
    scaleout = str(Path(sys.executable).with_name("scaleout"))
    flags = ["--workers", "1", "--no-access-log", "--no-engine-check"]
    return Contender("front", [scaleout, "launch", "render"], [*flags, *(f"--engine-url={url}" for url in urls)])


# ---------------------------------------------------------------------------------------------- paced


@define(eq=False)
class Stream:
    """One answer of the paced engine. `sent`: when each token left."""

    out: asyncio.WriteTransport
    sent: list[float]

    def send(self, tokens: int) -> bool:
        """Send the next token of `tokens`. Returns whether it was the last."""
        place = len(self.sent) + 1
        event = EVENT % (1000 + place % 1000, b'"length"' if place == tokens else b"null")
        self.sent.append(time.perf_counter())
        self.out.write(b"%x\r\n%b\r\n" % (len(event), event))
        if place < tokens:
            return False
        self.out.write(LAST)
        return True


EVENT = (
    b'data: {"request_id":"r","choices":[{"index":0,"token_ids":[%d],"finish_reason":%b,"stop_reason":null,'
    b'"logprobs":null}],"usage":null}\n\n'
)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@define(eq=False)
class Clock:
    """Says when each stream gets a token, and keeps how long tokens took. `slots`: moments of one period at which some streams are due."""

    tokens: int
    period: float
    slots: int
    sent: dict[int, list[float]] = field(factory=dict)
    took: list[float] = field(factory=list)
    _streams: list[list[Stream]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._streams = [[] for _ in range(self.slots)]

    def begin(self, number: int, out: asyncio.WriteTransport) -> None:
        sent = self.sent[number] = []
        self._streams[number % self.slots].append(Stream(out, sent))

    async def run(self) -> None:
        began, turn = time.perf_counter(), 0
        while True:
            due = int((time.perf_counter() - began) / self.period * self.slots)
            for late in range(turn, due):
                slot = late % self.slots
                self._streams[slot] = [one for one in self._streams[slot] if not one.send(self.tokens)]
            turn = due
            await asyncio.sleep(TICK)


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
        self.clock.begin(int(stream[1]), self._transport)


@define(eq=False)
class Reader(asyncio.Protocol):
    """One streamed answer. `over`: the number of tokens that came. `clock` None: nobody wants to know when."""

    request: bytes
    number: int
    clock: Clock | None
    over: asyncio.Future[int]
    _tokens: int = 0
    _head: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._head = self._head or data[:300]
        new = data.count(b'"token_ids":[')
        if self.clock is not None and new:
            sent = self.clock.sent[self.number]
            self.clock.took += [now - sent[place] for place in range(self._tokens, self._tokens + new)]
        self._tokens += new
        if b"[DONE]" in data and not self.over.done():
            self.over.set_result(self._tokens)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(RuntimeError(self._head.decode(errors="replace")))


def chat_request(number: int, tokens: int) -> bytes:
    text = f"What is {number} + 2? Explain it to me step by step."
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    return post(CHAT, number, body)


def engine_request(number: int) -> bytes:
    return post(GENERATE, number, {"request_id": f"bench-{number}-", "stream": True})


def post(path: str, number: int, body: object) -> bytes:
    data = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: front\r\nX-Request-Id: bench-{number}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def read_one(port: int, number: int, request: bytes, clock: Clock | None) -> int:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: Reader(request, number, clock, over), "127.0.0.1", port)
    try:
        return await over
    finally:
        transport.abort()


@frozen
class Paced:
    """What one load came to. `took`: seconds from the engine to the reader, sorted. `chunks`: a second. `busy`: share of the core."""

    took: Sequence[float]
    chunks: float
    busy: float

    def at(self, share: float) -> float:
        return self.took[min(int(len(self.took) * share), len(self.took) - 1)] * 1e3


async def press(options: argparse.Namespace, streams: int, clock: Clock, port: int, front: Server | None) -> Paced:
    """Keep so many streams going, of the engine itself where there is no front end."""
    numbers = iter(range(10**6))

    async def one_after_another(until: float) -> int:
        tokens = 0
        while time.perf_counter() < until:
            number = next(numbers)
            request = engine_request(number) if front is None else chat_request(number, options.tokens)
            tokens += await read_one(port, number, request, clock)
        return tokens

    ticking = asyncio.create_task(clock.run())
    pressing = [
        asyncio.create_task(one_after_another(time.perf_counter() + options.seconds + 2)) for _ in range(streams)
    ]
    await asyncio.sleep(2)  # all have begun, and the front end has warmed up
    clock.took.clear()
    busy, began = front.busy() if front is not None else 0.0, time.perf_counter()
    await asyncio.sleep(options.seconds)
    passed, took = time.perf_counter() - began, sorted(clock.took)
    spent = front.busy() - busy if front is not None else 0.0
    for one in pressing:
        one.cancel()
    await asyncio.gather(*pressing, return_exceptions=True)
    ticking.cancel()
    return Paced(took, len(took) / passed, spent / passed)


async def measure_paced(options: argparse.Namespace, streams: int, at_once: bool, cores: Cores, folder: Path) -> str:
    period = 1 / options.rate
    clocks = [Clock(options.tokens, period, 1 if at_once else round(period / TICK)) for _ in range(2)]
    loop = asyncio.get_running_loop()
    engines = [await loop.create_server(lambda clock=clock: Engine(clock), "127.0.0.1", 0) for clock in clocks]  # type: ignore[misc]
    ports = [int(engine.sockets[0].getsockname()[1]) for engine in engines]
    direct = await press(options, streams, clocks[0], ports[0], None)
    with ExitStack() as stack:
        start = running(front_over([f"http://127.0.0.1:{ports[1]}"]), find_model(options.model), cores, folder)
        front: Server = await asyncio.to_thread(stack.enter_context, start)
        await asyncio.to_thread(front.settle)
        through = await press(options, streams, clocks[1], int(front.url.rsplit(":", 1)[1]), front)
    for engine in engines:
        engine.close()
    how = "all at once" if at_once else "spread"
    shown = ", ".join(
        f"{name} {direct.at(share):.2f} → {through.at(share):.2f} (+{through.at(share) - direct.at(share):.2f})"
        for name, share in (("median", 0.5), ("p99", 0.99))
    )
    return (
        f"{streams} streams of {options.rate:g} tokens/s, {how}: ms from the engine, read directly → through the front end: {shown}; "
        f"{through.chunks:,.0f} chunks/s with {through.busy:.0%} of the core, {through.busy / through.chunks * 1e6:.0f} µs a chunk"
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
    numbers = iter(range(10**6))

    async def one_after_another(until: float) -> int:
        answers = 0
        while time.perf_counter() < until:
            number = next(numbers)
            tokens = await read_one(port, number, chat_request(number, SHORT), None)
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
