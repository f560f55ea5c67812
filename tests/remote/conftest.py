"""Servers that drive engines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from driving import config_of
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """`start(model, engine, **settings)`: a render-only server that drives engines elsewhere."""
    with ExitStack() as running:

        def run(model: Path, engine: EngineOptions, **settings: Any) -> Server:
            config = config_of(Mode.RENDER_ONLY, model, engine=engine, **settings)
            return running.enter_context(serving(make_app(config)))

        yield run
