"""Servers with an engine that needs no model weights, and routes of the tests' own beside the real ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Limits, Mode, ModeConfig
from scaleout.routes.table import RouteTable, mount

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def echo_config(tiny_model: Callable[..., Path]) -> Callable[..., ModeConfig]:
    """`echo_config(mode, **settings)`: a server that answers with the ids it was asked with."""
    model = str(tiny_model("llama2"))

    def config(mode: Mode = Mode.TOKENS_ONLY, *, limits: dict[str, Any] | None = None, **settings: Any) -> ModeConfig:
        settings = {"served_model_names": ("tiny", "small"), "access_log": False} | settings
        engine = EngineOptions() if mode is Mode.RENDER_ONLY else EngineOptions(backend="echo")
        return ModeConfig(mode, model=model, engine=engine, limits=Limits(**(limits or {})), **settings)

    return config


@pytest.fixture
def serve(echo_config: Callable[..., ModeConfig]) -> Iterator[Serve]:
    """`serve(mode, endpoint=…, **settings)`: a running server. `endpoint` answers POST /test beside the server's own routes."""
    with ExitStack() as running:

        def start(mode: Mode = Mode.TOKENS_ONLY, *, endpoint: Endpoint | None = None, **settings: Any) -> Server:
            app = make_app(echo_config(mode, **settings))
            if endpoint is not None:
                mount(app, [RouteTable("test", (("POST", "/test", endpoint),), works=True, bounded=True)], "")
            return running.enter_context(serving(app))

        yield start
