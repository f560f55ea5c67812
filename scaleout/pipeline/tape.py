"""What a stream has said so far, for readers that come at any time and read at their own pace. Does not know what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from attrs import define, field


@define(eq=False)
class Tape:
    """Events in order, as bytes. One task adds to it and ends it; any number follow, on the same event loop."""

    over: bool = False
    size: int = 0
    _frames: list[bytes] = field(factory=list)
    _news: asyncio.Event = field(factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.size += len(frame)
        self._tell()

    def end(self) -> None:
        """Nothing more will come."""
        self.over = True
        self._tell()

    async def follow(self, start: int = 0) -> AsyncIterator[bytes]:
        """What there is from event number `start` on, all of it at once, and then what comes, until the end."""
        while True:
            news, end = self._news, len(self._frames)
            if start < end:
                yield b"".join(self._frames[start:end])
                start = end
            elif self.over:
                return
            else:
                await news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
