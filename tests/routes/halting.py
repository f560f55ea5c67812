"""An engine that stops in the middle, so that a test finds its request there, or that fails there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from scaleout.core import GenerateRequest, PromptInfo, TokenDelta
from scaleout.generate.engine import Over


class Halting:
    """Says the prompt's first ids and then raises `fault`, or waits until its reader goes. `left` counts readers that went."""

    def __init__(self, engine: Any, says: int, fault: Exception | None = None) -> None:
        self._engine = engine
        self._says = says
        self._fault = fault
        self.asked = 0
        self.left = 0
        self.said = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        self.asked += 1
        try:
            for i, token in enumerate(request.token_ids[: self._says]):
                self.said += 1
                yield TokenDelta(0, [token], prompt=PromptInfo(request.token_ids) if i == 0 else None)
            if self._fault is not None:
                raise self._fault
            await asyncio.Event().wait()
        finally:
            self.left += 1
