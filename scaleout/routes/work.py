"""Where a request's work is done: at once when it is small, in a thread when it would keep other requests waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from scaleout.routes.keys import LIFECYCLE, POOL, STAGES

T = TypeVar("T")

SMALL_BODY = 32 << 10
"""Bytes. Below this, work takes well under a millisecond, and the way to a thread and back would cost more."""

QUICK_BYTES = 1 << 20
"""Bytes that may be worked on at once, all running requests taken for as large as this one: some 10 ms with the fast encoder, which
is how long others may be kept waiting. Threads that take turns make the same work half as expensive again."""


async def run(request: web.Request, work: Callable[[], T], size: int | None = None) -> T:
    """`work()`, without holding up the event loop for long. `size`: bytes to work on, where they are not the whole body."""
    length = request.content_length if size is None else size
    if length is not None and (length <= SMALL_BODY or is_quick(request, length)):
        return work()
    return await asyncio.get_running_loop().run_in_executor(request.app[POOL], work)


def is_quick(request: web.Request, length: int) -> bool:
    """Whether a larger body is no burden either: nothing much else runs, and the encoder is the fast one."""
    app = request.app
    return length * app[LIFECYCLE].in_flight <= QUICK_BYTES and app[STAGES].encodes_fast
