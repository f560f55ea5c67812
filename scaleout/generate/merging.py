"""Several streams as one: items come out as they come in. Does not know what they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

ROOM = 4
"""Items of each stream that may wait for a slow reader."""


def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all `streams`. The first error of one is raised, and ends them all; so does closing the iterator."""
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    ready: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(maxsize=ROOM * len(streams))

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await ready.put((item,))
        except Exception as error:  # whatever it is, the reader gets it
            end = error
        await ready.put(end)

    pumps = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        for _ in pumps:
            while (found := await ready.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                yield found[0]
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
