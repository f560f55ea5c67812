"""Servers that look like SGLang when they are asked what they are, and then misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def odd_engine(answer: Answer) -> web.Application:
    """`answer` gets every generate request."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "is_generation": True})

    async def generate(request: web.Request) -> web.StreamResponse:
        return await answer(request, await request.json())

    app = web.Application(client_max_size=1 << 26, handler_args={"handler_cancellation": True})
    app.router.add_get("/health", health)
    app.router.add_get("/model_info", info)
    app.router.add_post("/generate", generate)
    return app


def token(ids: list[int], count: int, reason: Any = None) -> str:
    meta = {"completion_tokens": count, "cached_tokens": 0, "finish_reason": reason}
    return json.dumps({"output_ids": ids, "meta_info": meta})


def says(*events: str) -> Answer:
    """A stream of these events, and then its end."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
        return response

    return answer


def refuses(status: int, body: Any, **headers: str) -> Answer:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body, status=status, headers=given)

    return answer


async def falls_silent(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """One token, and then nothing."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"data: {token([504], 1)}\n\n".encode())
    await asyncio.Event().wait()
    return response


async def never_answers(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def breaks_off(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """One token, and then the connection is gone."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"data: {token([504], 1)}\n\n".encode())
    assert request.transport is not None
    request.transport.abort()
    return response
