"""The acceptance test of the design: a coupled answer is, byte for byte, what the three stages give one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from split import ask_split, events, ok

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@contextmanager
def serve_all_routes(model: Path, engine: EngineOptions) -> Iterator[Server]:
    """One process with every route."""
    config = ModeConfig(
        Mode.STANDARD,
        model=str(model),
        served_model_names=("m",),
        scale_out=True,
        access_log=False,
        tool_call_parser="hermes",
        reasoning_parser="think",
        engine=engine,
    )
    with serving(make_app(config)) as server:
        yield server


@pytest.fixture(scope="module")
def echoing(smollm2_folder: Path) -> Iterator[Server]:
    """An engine that costs nothing: it repeats the prompt, control tokens and all."""
    with serve_all_routes(smollm2_folder, EngineOptions(backend="echo")) as server:
        yield server


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> Iterator[Server]:
    """The small model. Prefix reuse is off: it would show in the usage of the second of two equal requests."""
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=8, enable_prefix_caching=False)
    with serve_all_routes(smollm2_folder, engine) as server:
        yield server


@pytest.fixture(scope="module")
def front(smollm2_folder: Path) -> Iterator[Server]:
    """A render server of its own."""
    config = ModeConfig(
        Mode.RENDER_ONLY,
        model=str(smollm2_folder),
        served_model_names=("m",),
        access_log=False,
        tool_call_parser="hermes",
        reasoning_parser="think",
    )
    with serving(make_app(config)) as server:
        yield server


def messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**messages("What is 2+2?"), "max_tokens": 24}),
    "chat with sampling": (CHAT, {**messages("Tell me a story."), "max_tokens": 12, "temperature": 1, "seed": 5}),
    "chat with three choices": (CHAT, {**messages("A word?"), "max_tokens": 8, "temperature": 1, "seed": 7, "n": 3}),
    "chat with logprobs": (CHAT, {**messages("Say naïve 🙂."), "max_tokens": 12, "logprobs": True, "top_logprobs": 3}),
    "chat with ids": (CHAT, {**messages("Count to five."), "max_tokens": 12, "return_token_ids": True}),
    "chat with its prompt": (CHAT, {**messages("Count to five."), "max_tokens": 4, "return_prompt_text": True}),
    "chat with a stop string": (CHAT, {**messages("Count to nine."), "max_tokens": 40, "stop": ["5"]}),
    "chat with a stop string shown": (
        CHAT,
        {**messages("Count to nine."), "max_tokens": 40, "stop": "5", "include_stop_str_in_output": True},
    ),
    "chat with tools": (CHAT, {**messages("Add 1 and 2."), "max_tokens": 24, "tools": [TOOL], "tool_choice": "auto"}),
    "chat cut by length": (CHAT, {**messages("Write a poem."), "max_tokens": 3}),
    "chat with special tokens": (CHAT, {**messages("Hello"), "max_tokens": 24, "skip_special_tokens": False}),
    "completion": (COMPLETIONS, {"prompt": "The capital of France is", "max_tokens": 12}),
    "completion of ids": (COMPLETIONS, {"prompt": [504, 4345], "max_tokens": 8}),
    "completion that is an echo alone": (
        COMPLETIONS,
        {"prompt": "One two", "max_tokens": 0, "echo": True, "logprobs": 2},
    ),
    "completion with echo": (COMPLETIONS, {"prompt": "One two", "max_tokens": 4, "echo": True, "logprobs": 2}),
    "completion with three choices": (
        COMPLETIONS,
        {"prompt": "Once", "max_tokens": 6, "temperature": 1, "seed": 3, "n": 3, "logprobs": 1},
    ),
    "completion with a stop string": (COMPLETIONS, {"prompt": "1 2 3 4", "max_tokens": 20, "stop": ["7"]}),
}


def comparable(answer: Any) -> str:
    """An answer as text, without what names this one answer."""
    answer = {**answer, "id": None, "created": None}
    return json.dumps(answer, ensure_ascii=False)


def says_something(chunk: dict[str, Any]) -> bool:
    """Chunks without any news are not sent by a coupled server, which holds text back as a split one does."""
    for choice in chunk["choices"]:
        delta = choice.get("delta") or {"text": choice.get("text")}
        if not (any(delta.values()) or choice["finish_reason"] or choice["logprobs"] or choice["token_ids"]):
            return False
    return True


def check_whole(engine: Server, front: Server, name: str) -> None:
    path, request = REQUESTS[name]
    body = {"model": "m", "temperature": 0, **request}
    coupled = ok(engine.post(path, body, {"X-Request-Id": "same"}))
    split = ask_split(front, engine, path, body, "same")
    assert comparable(coupled) == comparable(split)


def check_stream(engine: Server, front: Server, name: str) -> None:
    path, request = REQUESTS[name]
    usage = "stop" not in request  # an engine goes on behind a stop string unless it is told: its own count is larger
    body = {"model": "m", "temperature": 0, **request, "stream": True, "stream_options": {"include_usage": usage}}
    coupled = events(engine.post(path, body, {"X-Request-Id": "same"}))
    split = [chunk for chunk in ask_split(front, engine, path, body, "same") if says_something(chunk)]
    for index in range(request.get("n", 1)):
        mine = [comparable(chunk) for chunk in coupled if [c["index"] for c in chunk["choices"]] == [index]]
        theirs = [comparable(chunk) for chunk in split if [c["index"] for c in chunk["choices"]] == [index]]
        assert mine == theirs
    assert [comparable(c) for c in coupled if not c["choices"]] == [comparable(c) for c in split if not c["choices"]]


@pytest.mark.parametrize("name", REQUESTS)
def test_whole_answers_are_equal(echoing: Server, front: Server, name: str) -> None:
    check_whole(echoing, front, name)


@pytest.mark.parametrize("name", REQUESTS)
def test_streams_are_equal(echoing: Server, front: Server, name: str) -> None:
    check_stream(echoing, front, name)


ON_THE_MODEL = (
    "chat",
    "chat with three choices",
    "chat with a stop string",
    "completion",
    "completion with three choices",
)


@pytest.mark.parametrize("name", ON_THE_MODEL)
@pytest.mark.parametrize("check", [check_whole, check_stream])
def test_a_real_model_answers_alike(real: Server, front: Server, name: str, check: Callable[..., None]) -> None:
    check(real, front, name)


@pytest.mark.parametrize("name", [name for name, (path, _) in REQUESTS.items() if path == CHAT])
def test_a_stream_joined_is_the_whole_answer(echoing: Server, name: str) -> None:
    path, request = REQUESTS[name]
    body = {"model": "m", "temperature": 0, **request}
    whole = ok(echoing.post(path, body))
    chunks = events(echoing.post(path, {**body, "stream": True}))
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"]["content"] or "" for c in own) == (choice["message"]["content"] or "")
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        assert [c["stop_reason"] for c in own if c["finish_reason"]] == [choice["stop_reason"]]
        if choice["logprobs"]:
            joined = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
            assert [e["token"] for e in joined] == [e["token"] for e in choice["logprobs"]["content"]]


def test_several_prompts_stream_together(echoing: Server) -> None:
    body = {"model": "m", "prompt": ["One", "Two", "Three"], "max_tokens": 5, "temperature": 0}
    whole = ok(echoing.post(COMPLETIONS, body))
    chunks = events(echoing.post(COMPLETIONS, {**body, "stream": True}))
    for choice in whole["choices"]:
        own = [c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(own) == choice["text"]
    assert len(whole["choices"]) == 3


def test_the_prompt_is_shown_where_it_is_asked_for(echoing: Server) -> None:
    path, request = REQUESTS["chat with its prompt"]
    prompt = ok(echoing.post(path, {"model": "m", **request}))["prompt_text"]
    assert prompt.endswith("<|im_start|>user\nCount to five.<|im_end|>\n<|im_start|>assistant\n")
    chunks = events(echoing.post(path, {"model": "m", **request, "stream": True}))
    assert [chunk["prompt_text"] for chunk in chunks] == [prompt, *[None] * (len(chunks) - 1)]
    assert ok(echoing.post(path, {"model": "m", **request, "return_prompt_text": False}))["prompt_text"] is None
