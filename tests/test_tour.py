"""The official clients' tour of every kind of server that we have: the transcripts are the same, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from tour import STEPS, World, go

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

Json = Any
KINDS = ("standard", "front and engine")
CALL = '<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>'
SCRIPTED = World(
    greeting="The capital is Paris. 🙂",
    ask_for_city='{"city": "Oslo", "snow": true}',
    ask_for_sum=f"<think>Two numbers.</think>Adding.{CALL}",
    must_call=False,
    thinks=True,
    limit=64,
)
LAST_WORDS = "{{ messages[-1].content if messages[-1].content is string else messages[-1].content | map(attribute='text') | join }}"
"""A template whose prompt is what was said last: an engine that repeats its prompt then speaks from a script."""


def home(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@contextmanager
def serve(kind: str, model: Path, engine: EngineOptions, **settings: Any) -> Iterator[str]:
    """One server that answers all of the tour, or two that do it together."""
    shared = {"model": str(model), "served_model_names": ("m",), "access_log": False}
    if kind == "standard":
        with serving(make_app(ModeConfig(Mode.STANDARD, engine=engine, **shared, **settings))) as server:
            yield home(server)
        return
    with serving(make_app(ModeConfig(Mode.TOKENS_ONLY, engine=engine, **shared))) as tokens:
        elsewhere = EngineOptions(urls=(home(tokens),))
        front = ModeConfig(Mode.RENDER_ONLY, engine=elsewhere, workers=1, **shared, **settings)
        with serving(make_app(front)) as server:
            yield home(server)


@pytest.fixture(scope="module")
def scripted(tiny_model: Callable[..., Path]) -> dict[str, dict[str, Json]]:
    """The tour with an engine that speaks from a script: thoughts, calls and JSON at will. By kind of server."""
    transcripts = {}
    for kind in KINDS:
        engine = EngineOptions(backend="echo", args={"eos_after_prompt": True})
        settings = {"chat_template": LAST_WORDS, "tool_call_parser": "hermes", "reasoning_parser": "think"}
        with serve(kind, tiny_model("qwen3"), engine, **settings) as url:
            transcripts[kind] = go(url, SCRIPTED)
    return transcripts


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> dict[str, dict[str, Json]]:
    """The tour with the small model, greedy."""
    transcripts = {}
    for kind in KINDS:
        engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=4)
        with serve(kind, smollm2_folder, engine, tool_call_parser="hermes") as url:
            transcripts[kind] = go(url, World())
    return transcripts


def show(value: Json) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)


@pytest.mark.parametrize("step", STEPS)
def test_a_scripted_tour_is_the_same_everywhere(scripted: dict[str, dict[str, Json]], step: str) -> None:
    one, other = (scripted[kind][step] for kind in KINDS)
    assert show(one) == show(other)


def test_the_script_was_followed(scripted: dict[str, dict[str, Json]]) -> None:
    told = scripted["standard"]
    assert told["chat"]["whole"]["choices"][0]["message"]["content"] == SCRIPTED.greeting
    first, second = told["tool_loop"]
    assert first["choices"][0]["message"]["reasoning"] == "Two numbers."
    assert first["choices"][0]["message"]["content"] == "Adding."
    assert second["choices"][0]["message"]["content"] == "42"
    assert [block["type"] for block in told["message_tool_loop"][0]["content"]] == ["thinking", "text", "tool_use"]
    assert [item["type"] for item in told["response_tool_loop"][0]["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert told["mistakes"] == [
        ["NotFoundError", 404],
        ["BadRequestError", 400],
        ["NotFoundError", 404],
        ["NotFoundError", 404],
    ]


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", STEPS)
def test_a_real_tour_is_the_same_everywhere(real: dict[str, dict[str, Json]], step: str) -> None:
    one, other = (real[kind][step] for kind in KINDS)
    assert show(one) == show(other)


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_small_model_knows_its_way(real: dict[str, dict[str, Json]]) -> None:
    assert "Paris" in real["standard"]["chat"]["whole"]["choices"][0]["message"]["content"]
