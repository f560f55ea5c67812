"""The examples in docs/fronts run as they stand, and the routers that send render requests get what they need within their budgets."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Answer, Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

Json = Any
PAGES = Path(__file__).resolve().parent.parent / "docs" / "fronts"
HOME = "http://localhost:8000"
BUDGET = 5.0
"""Seconds after which llm-d's router goes on without token ids."""


def blocks() -> list[Any]:
    """Every runnable block of every page."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        for i, (language, code) in enumerate(re.findall(r"```(python|sh)\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append(pytest.param(language, code, id=f"{page.stem}-{i}"))
    return found


@pytest.fixture(scope="module")
def everything(smollm2_folder: Path) -> Iterator[Server]:
    """The server of the pages: the small model with every route."""
    config = ModeConfig(
        Mode.STANDARD,
        model=str(smollm2_folder),
        served_model_names=("m",),
        scale_out=True,
        access_log=False,
        tool_call_parser="hermes",
        engine=EngineOptions(device="cpu", dtype="float32", max_num_seqs=4),
    )
    with serving(make_app(config)) as server:
        yield server


@pytest.mark.engine
@pytest.mark.parametrize(("language", "code"), blocks())
def test_an_example_runs_as_it_stands(everything: Server, tmp_path: Path, language: str, code: str) -> None:
    command = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    here = code.replace(HOME, f"http://127.0.0.1:{everything.port}")
    environ = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([*command, here], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or language == "sh"


def test_there_is_a_page_for_each_front_and_the_readme_leads_there() -> None:
    readme = (PAGES.parent.parent / "README.md").read_text()
    pages = {page.stem for page in PAGES.glob("*.md")}
    assert pages == {"anthropic", "curl", "dynamo", "llm-d", "openai"}
    assert all(f"docs/fronts/{page}.md" in readme for page in pages)


# ---------------------------------------------------------------------------------------------- routers that ask for ids


@pytest.fixture(scope="module")
def renderer(tiny_model: Callable[..., Path]) -> Iterator[Server]:
    config = ModeConfig(
        Mode.RENDER_ONLY, model=str(tiny_model("qwen3")), served_model_names=("qwen3", "alias"), access_log=False
    )
    with serving(make_app(config)) as server:
        yield server


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "toolu_01", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zurich"}'}}
AGENTIC_TURN = {
    "model": "qwen3",
    "messages": [
        {"role": "system", "content": "You can use tools."},
        {"role": "user", "content": "Weather in Zurich?"},
        {"role": "assistant", "reasoning": "I should check.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "toolu_01", "content": "Sunny, 22C"},
    ],
    "tools": [TOOL],
}
MESSAGES_TURN = {
    "model": "qwen3",
    "max_tokens": 64,
    "system": "You can use tools.",
    "tools": [
        {"name": "get_weather", "description": "Get the weather", "input_schema": TOOL["function"]["parameters"]}
    ],  # type: ignore[index]
    "messages": [
        {"role": "user", "content": "Weather in Zurich?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should check.", "signature": ""},
                {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "Zurich"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "Sunny, 22C"}]},
    ],
}
RESPONSES_TURN = {
    "model": "qwen3",
    "instructions": "You are a coding agent.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "list files"}]},
        {"type": "function_call", "call_id": "c1", "name": "run_shell", "arguments": '{"cmd":"ls"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a.go"},
    ],
    "tools": [{"type": "function", "name": "run_shell", "parameters": {"type": "object", "properties": {}}}],
    "reasoning": {"effort": "high"},
    "store": False,
    "stream": True,
}
# What the router's plugin forwards: clients' bodies as they came, with fields of their own, and conversations rebuilt from other APIs.
FORWARDED: dict[str, tuple[str, Json]] = {
    "completion": ("/v1/completions/render", {"model": "qwen3", "prompt": "hello", "dummy_field": "kept"}),
    "completions": ("/v1/completions/render", {"model": "alias", "prompt": ["alpha", "beta"]}),
    "ids": ("/v1/completions/render", {"model": "qwen3", "prompt": [1, 2, 3], "max_tokens": 1}),
    "chat": (
        "/v1/chat/completions/render",
        {
            "model": "qwen3",
            "messages": [{"role": "user", "content": "hi"}],
            "dummy": "kept",
            "reasoning": {"effort": "high"},
            "add_generation_prompt": True,
        },
    ),
    "agentic turn": ("/v1/chat/completions/render", AGENTIC_TURN),
    "messages": ("/v1/messages/render", MESSAGES_TURN),
    "responses": ("/v1/responses/render", RESPONSES_TURN),
}
TRACED = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}


def within_budget(server: Server, path: str, body: Json) -> Answer:
    began = time.monotonic()
    answer = server.post(path, body, TRACED)
    assert time.monotonic() - began < BUDGET
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.parametrize("name", FORWARDED)
def test_a_router_gets_token_ids(renderer: Server, name: str) -> None:
    path, body = FORWARDED[name]
    rendered = within_budget(renderer, path, body).json
    if path == "/v1/completions/render":
        prompts = body["prompt"] if isinstance(body["prompt"], list) and isinstance(body["prompt"][0], str) else [0]
        assert isinstance(rendered, list)
        assert len(rendered) == len(prompts)
    else:
        assert isinstance(rendered, dict)
        rendered = [rendered]
    for one in rendered:
        assert one["token_ids"]
        assert all(type(token) is int and 0 <= token < 2**32 for token in one["token_ids"])  # the router reads uint32
        assert one["features"] is None


def test_one_conversation_has_the_same_ids_in_every_api(renderer: Server) -> None:
    """The router may render a conversation in another API than the engine was asked in."""
    chat = within_budget(renderer, "/v1/chat/completions/render", AGENTIC_TURN).json["token_ids"]
    assert within_budget(renderer, "/v1/messages/render", MESSAGES_TURN).json["token_ids"] == chat


def test_a_long_conversation_is_within_the_budget(renderer: Server) -> None:
    text = " ".join(f"word{i} and some more of it" for i in range(5000))
    rendered = within_budget(
        renderer, "/v1/completions/render", {"model": "qwen3", "prompt": text, "max_tokens": 1}
    ).json
    assert len(rendered[0]["token_ids"]) > 25_000


def test_the_router_finds_out_what_is_served(renderer: Server) -> None:
    """Its probe of the messages route, the context length, and a connection that it keeps."""
    connection = http.client.HTTPConnection("127.0.0.1", renderer.port, timeout=BUDGET)
    probe = {"model": "qwen3", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    for method, path, body in (
        ("POST", "/v1/messages/render", probe),
        ("GET", "/v1/models", None),
        ("GET", "/health", None),
        ("POST", "/v1/completions/render", {"model": "qwen3", "prompt": "x"}),
    ):
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200
        assert answer.headers.get("Connection") != "close"
        if path == "/v1/models":
            assert all(card["max_model_len"] > 0 for card in json.loads(told)["data"])
    connection.close()
