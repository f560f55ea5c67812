"""Load on the event-stream form of derender: many answers at a time, one connection each.

usage: python -m bench.sse_load BASE_URL MODEL [streams] [seconds]

Every stream has one token on its way: the next is sent when something has come of the last, as if an engine served them all in step.
Prints one JSON line: chunks_per_s (tokens answered, all streams together), p99_ms (from a token to what came of it), chunks (answered
in all, with those before counting began), error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop
from attrs import define, field

CHAT = "/v1/chat/completions"
WORDS = "the engine answers one token after another and each becomes a chunk of the stream that its client reads"
TOKENS = 500
"""Tokens of one answer. Whoever has finished one begins the next, on a new connection."""
WARM = 0.2
"""Share of the time that passes before anything is counted."""


def make_events(base: str, model: str) -> list[bytes]:
    """What a client writes for one answer: the context, then one token an event, as chunks of an HTTP body."""
    chat = {"model": model, "messages": [{"role": "user", "content": "Tell me how this works."}], "stream": True}
    prompt = _post(f"{base}{CHAT}/render", chat)["token_ids"]
    ids = _post(f"{base}/v1/completions/render", {"model": model, "prompt": " ".join([WORDS] * 40), "max_tokens": 1})
    said = ids[0]["token_ids"][:TOKENS]
    context = {"model": model, "chat_request": chat, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}
    events = [
        _event({"request_id": "r", "choices": [_choice(token, i == len(said) - 1)]}) for i, token in enumerate(said)
    ]
    events[0] = _event(context, "context") + events[0]
    events[-1] += _chunk(b"data: [DONE]\n\n") + _chunk(b"")
    return events


def _choice(token: int, last: bool) -> dict[str, object]:
    return {"index": 0, "token_ids": [token], "finish_reason": "length" if last else None, "logprobs": None}


def _event(value: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return _chunk(f"{head}data: {json.dumps(value)}\n\n".encode())


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _post(url: str, body: object) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@define(eq=False)
class Stream(asyncio.Protocol):
    """One answer. `times`: gets the seconds from each token to what came of it. `over`: how it ended, "" for well."""

    events: Sequence[bytes]
    head: bytes
    times: list[float]
    over: asyncio.Future[str]
    _next: int = field(default=0, init=False)
    _sent: float = field(default=0.0, init=False)
    _seen: bytes = field(default=b"", init=False)
    _transport: asyncio.WriteTransport | None = field(default=None, init=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's own class
        self._transport.write(self.head)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(self.events[self._next])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        if not self._seen and not data.startswith(b"HTTP/1.1 200 "):
            self._end(data.decode(errors="replace")[-300:])
            return
        self._seen = data
        if b'data: {"error"' in data:
            self._end(data.decode(errors="replace")[-300:])
        elif b"data: " in data:
            self.times.append(time.perf_counter() - self._sent)
            if b"data: [DONE]" in data:
                self._end("" if self._next == len(self.events) else "the answer ended before its tokens did")
            elif self._next < len(self.events):
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}")

    def _end(self, how: str) -> None:
        if not self.over.done():
            self.over.set_result(how)
        if self._transport is not None:
            self._transport.abort()


async def run_load(base: str, events: Sequence[bytes], streams: int, seconds: float) -> dict[str, object]:
    """`streams` answers at a time for `seconds`. The first failed one ends the run."""
    place = urlsplit(base)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    head = (
        f"POST {CHAT}/derender HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: text/event-stream\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def answer_after_answer() -> str:
        error = ""
        while not error:
            over: asyncio.Future[str] = loop.create_future()
            transport, _ = await loop.create_connection(partial(Stream, events, head, times, over), host, port)
            try:
                error = await over
            finally:
                transport.abort()
        return error

    tasks = [asyncio.create_task(answer_after_answer()) for _ in range(streams)]
    try:
        ended, _ = await asyncio.wait(tasks, timeout=seconds * WARM, return_when=asyncio.FIRST_COMPLETED)
        before = len(times)
        began = time.perf_counter()
        if not ended:
            ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        passed = time.perf_counter() - began
    finally:
        for task in tasks:
            task.cancel()
    counted = sorted(times[before:])
    error = next((task.result() for task in ended), "" if counted else "no token was answered")
    p99 = counted[int(len(counted) * 0.99)] if counted else 0.0
    return {
        "streams": streams,
        "chunks_per_s": round(len(counted) / passed, 1),
        "p99_ms": round(p99 * 1e3, 2),
        "chunks": len(times),
        "error": error,
    }


def main(argv: Sequence[str]) -> None:
    base, model, *rest = argv
    streams = int(rest[0]) if rest else 100
    seconds = float(rest[1]) if len(rest) > 1 else 5.0
    print(json.dumps(uvloop.run(run_load(base, make_events(base, model), streams, seconds))))


if __name__ == "__main__":
    main(sys.argv[1:])
