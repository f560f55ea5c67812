"""A tokens-only server whose engine takes its time: python steady_engine.py MODEL PORT SECONDS_PER_TOKEN."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from aiohttp import web
from attrs import define

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.core import GenerateRequest, TokenDelta
from scaleout.generate.engine import Engine, Over
from scaleout.generate.options import EngineStats
from scaleout.routes.keys import STAGES


@define
class Steady:
    """`engine`, one delta every `pause` seconds."""

    engine: Engine
    pause: float

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.engine.vocab_size

    @property
    def eos_token_ids(self) -> Sequence[int]:
        return self.engine.eos_token_ids

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        async with aclosing(self.engine.generate(request, over)) as deltas:
            async for delta in deltas:
                await asyncio.sleep(self.pause)
                yield delta

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self.engine.abort(request_ids)

    def health(self) -> None:
        self.engine.health()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    async def close(self, grace: float = 0) -> None:
        await self.engine.close(grace)


def main() -> None:
    model, port, pause = sys.argv[1:4]
    echo = EngineOptions(backend="echo", max_num_seqs=64)
    app = make_app(ModeConfig(Mode.TOKENS_ONLY, model=model, served_model_names=("m",), access_log=False, engine=echo))

    async def slow_down(app: web.Application) -> None:
        engine = app[STAGES].engine
        assert engine is not None
        app[STAGES].engine = Steady(engine, float(pause))

    app.on_startup.append(slow_down)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, shutdown_timeout=30)


if __name__ == "__main__":
    main()
