"""A client of one connection per answer: the engine's stream goes through a derender route, by plain HTTP, as users write it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from serving import Answer, Server

Json = Any
SAME = {"X-Request-Id": "same"}
EVENT_STREAM = {"Content-Type": "text/event-stream"}


def context_key(path: str) -> str:
    """`chat_request` and its like."""
    name = path.removeprefix("/v1/")
    return {"chat/completions": "chat_request", "completions": "completion_request"}.get(name, f"{name}_request")


def context_event(**context: Json) -> bytes:
    return b"event: context\ndata: %b\n\n" % json.dumps(context).encode()


def data_event(value: Json) -> bytes:
    return b"data: %b\n\n" % (value if isinstance(value, bytes) else json.dumps(value).encode())


DONE = data_event(b"[DONE]")


def chunk(ids: Iterable[int], finish: str | None = None, index: int = 0, **more: Json) -> Json:
    """An engine's event for one choice."""
    return {"request_id": "r", "choices": [{"index": index, "token_ids": list(ids), "finish_reason": finish}], **more}


def undated(body: bytes) -> bytes:
    """A stream without the second in which it was made."""
    return re.sub(rb'"created(_at)?":\d+', b'"created":0', body)


def payloads(body: bytes) -> list[bytes]:
    """The data of each event."""
    return [block.rpartition(b"data: ")[2] for block in body.removesuffix(b"\n\n").split(b"\n\n")]


def chunks_of(body: bytes) -> list[Json]:
    """The chunks of a stream that ends with `[DONE]`."""
    *chunks, last = payloads(body)
    assert last == b"[DONE]"
    return [json.loads(one) for one in chunks]


def render(server: Server, path: str, body: Json, headers: Json = SAME) -> Json:
    """The rendered request of one prompt."""
    answer = server.post(f"{path}/render", body, headers)
    assert answer.status == 200, answer.body
    rendered = answer.json
    if isinstance(rendered, list):
        (rendered,) = rendered
    return rendered


def engine_stream(server: Server, rendered: Json) -> bytes:
    answer = server.post("/inference/v1/generate", rendered)
    assert answer.status == 200, answer.body
    return answer.body


def context_of(path: str, body: Json, rendered: Json) -> Json:
    """What the context event of an ordinary client holds."""
    ids = rendered["token_ids"]
    return {"model": body.get("model"), context_key(path): body, "prompt_token_ids": ids, "prompt_tokens": len(ids)}


def derender(server: Server, path: str, *events: bytes) -> Answer:
    """A body that is sent whole before the answer is looked at."""
    return server.post(f"{path}/derender", b"".join(events), EVENT_STREAM)


@asynccontextmanager
async def piped(url: str, path: str, context: Json, rendered: Json) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer of a derender route while the engine's stream still goes into it, both over connections of their own."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/inference/v1/generate", json=rendered) as engine,
    ):
        assert engine.status == 200

        async def body() -> AsyncIterator[bytes]:
            yield context_event(**context)
            async for piece in engine.content.iter_any():
                yield piece

        async with session.post(f"{url}{path}/derender", data=body(), headers=EVENT_STREAM) as answer:
            yield answer


async def pipe(url: str, path: str, context: Json, rendered: Json) -> bytes:
    """A whole stream that was piped through."""
    async with piped(url, path, context, rendered) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.content_type == "text/event-stream"
        return await answer.read()
