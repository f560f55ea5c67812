"""Engines elsewhere, each in its own event loop of this process, and the servers that drive them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving import Server, serving
from wires import IncrementalSglangServer, LlamacppServer, SglangServer, WireServer

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.generate import options
from scaleout.generate.engine import Engine, open_engine
from scaleout.tokenizer import load_model_files, load_tokenizer

FORMATS = {"tool_call_parser": "hermes", "reasoning_parser": "think"}
WIRES: dict[str, type[WireServer]] = {
    "sglang": SglangServer,
    "sglang incremental": IncrementalSglangServer,
    "llamacpp": LlamacppServer,
}
OURS = {"generate": Mode.TOKENS_ONLY, "completions": Mode.STANDARD}


def config_of(mode: Mode, model: Path, **settings: Any) -> ModeConfig:
    known = {"served_model_names": ("m",), "access_log": False, **FORMATS} | settings
    return ModeConfig(mode, model=str(model), **known)


@contextmanager
def run_engine(kind: str, model: Path, engine: EngineOptions) -> Iterator[Server]:
    """An engine that is driven by the wire `kind`."""
    if kind in OURS:
        with serving(make_app(config_of(OURS[kind], model, engine=engine))) as server:
            yield server
        return
    inner = open_engine(load_model_files(str(model)), options.EngineOptions(backend=engine.backend or "echo"))
    with run_wire(kind, model, inner) as server:
        yield server
    asyncio.run(inner.close())


@contextmanager
def run_wire(kind: str, model: Path, engine: Engine | None) -> Iterator[Server]:
    """`engine` behind another wire than ours."""
    assert engine is not None
    files = load_model_files(str(model))
    with serving(WIRES[kind](engine, files, load_tokenizer(files)).app()) as server:
        yield server


def remote(*engines: Server, **settings: Any) -> EngineOptions:
    settings = {"health_interval": 0.05, **settings}
    return EngineOptions(urls=tuple(f"http://127.0.0.1:{server.port}" for server in engines), **settings)
