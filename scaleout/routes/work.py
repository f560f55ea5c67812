"""Where a request's work is done: at once when it is small, in a thread when it would keep other requests waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from scaleout.routes.keys import LIFECYCLE, POOL, STAGES, TURN

T = TypeVar("T")

SMALL_BODY = 32 << 10
"""Bytes. Below this, work takes well under a millisecond, and the way to a thread and back would cost more."""

QUICK_BODY = 192 << 10
"""Bytes of a body that may be worked on at once: some 5 ms with the fast encoder. Threads that take turns make the same work half as
expensive again."""

QUICK_BYTES = 1 << 20
"""Bytes that may wait for their turn on the event loop, all running requests taken for as large as this one."""


async def run(request: web.Request, work: Callable[[], T], size: int | None = None) -> T:
    """`work()`, without holding up the event loop for long. `size`: bytes to work on, where they are not the whole body."""
    length = request.content_length if size is None else size
    if length is not None and length <= SMALL_BODY:
        return work()
    if length is not None and is_quick(request, length):
        # One at a time, and between two of them the loop looks who else has come.
        async with request.app[TURN]:
            await asyncio.sleep(0)
            return work()
    return await asyncio.get_running_loop().run_in_executor(request.app[POOL], work)


def is_quick(request: web.Request, length: int) -> bool:
    """Whether a larger body is no burden either: nothing much else runs, and the encoder is the fast one."""
    app = request.app
    return length <= QUICK_BODY and length * app[LIFECYCLE].in_flight <= QUICK_BYTES and app[STAGES].encodes_fast
