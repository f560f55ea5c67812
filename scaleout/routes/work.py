"""Where a request's work is done: at once when it is small, in a thread when it would keep other requests waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from aiohttp import web

from scaleout.routes.keys import POOL, STAGES, TURNS

T = TypeVar("T")

SMALL_BODY = 32 << 10
"""Bytes. Below this, work takes well under a millisecond, and the way to a thread and back would cost more."""

QUICK_BODY = 192 << 10
"""Bytes of a body that may be worked on at once: some 5 ms with the fast encoder. Threads that take turns make the same work half as
expensive again."""

QUICK_PROMPT = 384 << 10
"""The same where the body is a prompt: 2 ms, or 7 where no word was met before."""


class Turns:
    """Larger work takes turns: on the event loop one piece between two looks at the sockets, in threads one body at a time.

    In threads too, nearly all of the work needs the interpreter. Two at a time would end no sooner, hold twice the memory, and keep the
    event loop waiting twice as often.
    """

    def __init__(self) -> None:
        self._on_loop = asyncio.Lock()
        self._in_thread = asyncio.Lock()
        self._taken = False

    async def on_loop(self, work: Callable[[], T]) -> T:
        """`work()`, once those have been answered who asked a short question during the last piece."""
        async with self._on_loop:
            while self._taken:  # noqa: ASYNC110 - rounds of the loop are what it waits for
                await asyncio.sleep(0)
            self._taken = True
            # One round of the loop reads what has come, the next answers it.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._pass_on)
            return work()

    def _pass_on(self) -> None:
        self._taken = False

    async def in_thread(self, pool: Executor, work: Callable[[], T]) -> T:
        async with self._in_thread:
            return await asyncio.get_running_loop().run_in_executor(pool, work)


async def run(request: web.Request, work: Callable[[], T], size: int | None = None, quick: int = QUICK_BODY) -> T:
    """`work()`, without holding up the event loop for long.

    `size`: bytes to work on, where they are not the whole body; up to `quick` of them are worked on at once.
    """
    length = request.content_length if size is None else size
    if length is not None and length <= SMALL_BODY:
        return work()
    app = request.app
    if not app[STAGES].encodes_fast:
        # The slow encoder does not need the interpreter, so here threads are faster, and a piece of work is long.
        return await asyncio.get_running_loop().run_in_executor(app[POOL], work)
    if length is not None and length <= quick:
        return await app[TURNS].on_loop(work)
    return await app[TURNS].in_thread(app[POOL], work)
