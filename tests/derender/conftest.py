"""A server whose engine says what the user said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Limits, Mode, ModeConfig

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="session")
def saying(tiny_model: Callable[..., Path]) -> Callable[..., ModeConfig]:
    """`saying(limits={…}, **settings)`: every route in one process. The prompt is what the user said, and the engine repeats it."""
    model = str(tiny_model("qwen3"))

    def config(*, limits: dict[str, Any] | None = None, **settings: Any) -> ModeConfig:
        return ModeConfig(
            Mode.STANDARD,
            model=model,
            chat_template=TEMPLATE,
            served_model_names=("m",),
            scale_out=True,
            access_log=False,
            tokenizer_backend="hf",
            tool_call_parser="hermes",
            reasoning_parser="think",
            engine=EngineOptions(backend="echo", args={"eos_after_prompt": True}),
            limits=Limits(**(limits or {})),
            **settings,
        )

    return config


@pytest.fixture(scope="module")
def server(saying: Callable[..., ModeConfig]) -> Iterator[Server]:
    with serving(make_app(saying())) as running:
        yield running


@pytest.fixture
def serve(saying: Callable[..., ModeConfig]) -> Iterator[Callable[..., Server]]:
    """`serve(limits={…}, **settings)`: a server of a test's own."""
    with ExitStack() as running:
        yield lambda **settings: running.enter_context(serving(make_app(saying(**settings))))
