"""Every route with every kind of wrong body: a named 4xx in the one shape, never a 500, and a server that is as well as before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Answer, Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Limits, Mode, ModeConfig

TOOL = {
    "type": "function",
    "function": {"name": "clock", "description": "tells the time", "parameters": {"type": "object"}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ],
    "tools": [TOOL],
    "tool_choice": "none",
    "temperature": 0.5,
    "max_tokens": 4,
    "stop": ["x"],
    "n": 1,
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 1,
    "stream": False,
    "logit_bias": {"5": 1.0},
    "chat_template_kwargs": {"a": 1},
}
COMPLETION = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 4, "n": 1, "logprobs": 1, "stop": "x", "echo": False}
CHOICE = {
    "index": 0,
    "token_ids": [15043, 727],
    "finish_reason": "stop",
    "stop_reason": None,
    "logprobs": {
        "content": [
            {
                "token_id": 15043,
                "logprob": -1.0,
                "rank": 1,
                "top_logprobs": [{"token_id": 5, "logprob": -1.5, "rank": 2}],
            },
            {"token_id": 727, "logprob": -1.0, "rank": 1, "top_logprobs": []},
        ]
    },
}
RESULT = {
    "request_id": "r",
    "choices": [CHOICE],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
}
CHUNK = {"request_id": "r", "choices": [CHOICE], "usage": None}
MESSAGES = {
    "model": "tiny",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "clock", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]},
    ],
    "tools": [{"name": "clock", "description": "tells the time", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "none"},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "thinking": {"type": "disabled"},
}
RESPONSES = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
    ],
    "tools": [{"type": "function", "name": "clock", "parameters": {"type": "object"}}],
    "tool_choice": "none",
    "max_output_tokens": 4,
    "temperature": 0.5,
    "store": False,
    "reasoning": None,
}
BODIES: Mapping[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [CHAT, CHAT | {"stream": True, "stream_options": {"include_usage": True}}],
    "/v1/completions": [COMPLETION, {"prompt": [1, 2, 3], "max_tokens": 3, "stream": True}],
    "/v1/chat/completions/render": [CHAT],
    "/v1/completions/render": [COMPLETION, {"prompt": [[1, 2], [3]]}],
    "/v1/chat/completions/derender": [
        {
            "model": "tiny",
            "generate_response": RESULT,
            "prompt_tokens": 3,
            "prompt_token_ids": [1, 2],
            "chat_request": CHAT,
        },
        {"stream": True, "generate_chunk": CHUNK, "stream_state": None, "prompt_token_ids": [1], "chat_request": CHAT},
    ],
    "/v1/completions/derender": [
        {
            "generate_responses": [RESULT],
            "prompt_tokens": [3],
            "prompt_token_ids": [[1, 2]],
            "completion_request": COMPLETION,
        },
        {"stream": True, "generate_chunk": CHUNK, "stream_state": None, "completion_request": COMPLETION},
    ],
    "/v1/messages": [MESSAGES, MESSAGES | {"stream": True}],
    "/v1/messages/render": [MESSAGES],
    "/v1/messages/count_tokens": [MESSAGES],
    "/v1/messages/derender": [
        {"generate_response": RESULT, "prompt_tokens": 3, "prompt_token_ids": [1, 2], "messages_request": MESSAGES},
        {"stream": True, "generate_chunk": CHUNK, "stream_state": None, "messages_request": MESSAGES},
    ],
    "/v1/responses": [RESPONSES, RESPONSES | {"stream": True}],
    "/v1/responses/render": [RESPONSES],
    "/invocations": [CHAT, COMPLETION, RESPONSES | {"store": True}],
    "/v1/responses/derender": [
        {"generate_response": RESULT, "prompt_tokens": 3, "prompt_token_ids": [1, 2], "responses_request": RESPONSES},
        {"stream": True, "generate_chunk": CHUNK, "stream_state": None, "responses_request": RESPONSES},
    ],
    "/inference/v1/generate": [
        {
            "request_id": "r",
            "token_ids": [5, 6, 7],
            "sampling_params": {"max_tokens": 4, "temperature": 0.5, "n": 2, "logprobs": 1, "stop_token_ids": [9]},
            "model": "tiny",
            "stream": False,
            "priority": 0,
            "cache_salt": "s",
            "stream_options": None,
            "features": None,
        },
        {
            "token_ids": [5, 6],
            "sampling_params": {"max_tokens": 3},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ],
    "/inference/v1/abort_requests": [{"request_ids": ["a"]}],
    "/abort_requests": [{"request_ids": ["a"]}],
    "/tokenize": [{"prompt": "hello", "add_special_tokens": True, "return_token_strs": True, "model": "tiny"}, CHAT],
    "/detokenize": [{"tokens": [1, 2, 3], "model": "tiny"}],
}
PATHS = sorted(BODIES)
FINE = (200, 400, 404, 501)


@pytest.fixture(scope="module")
def servers(tiny_model: Callable[..., Path]) -> Iterator[Mapping[str, Server]]:
    """A server for each path."""
    model = str(tiny_model("qwen3"))

    def config(mode: Mode) -> ModeConfig:
        return ModeConfig(
            mode,
            model=model,
            served_model_names=("tiny",),
            scale_out=True,
            access_log=False,
            engine=EngineOptions(backend="echo"),
            limits=Limits(max_body_bytes=200_000, max_json_depth=40),
            max_model_len=600,
        )

    with (
        serving(make_app(config(Mode.STANDARD))) as standard,
        serving(make_app(config(Mode.TOKENS_ONLY))) as tokens_only,
    ):
        yield {path: tokens_only if path == "/abort_requests" else standard for path in PATHS}


def test_every_route_that_takes_a_body_is_here(servers: Mapping[str, Server]) -> None:
    posts = {
        route.resource.canonical
        for server in servers.values()
        for route in server.app.router.routes()
        if route.method == "POST" and route.resource is not None and not route.resource.canonical.endswith("/")
    }
    assert posts - {"/ping", "/v1/responses/{response_id}/cancel"} == set(PATHS)


def message_of(path: str, answer: Answer) -> str:
    """What an error says, after a check of its shape."""
    if not path.startswith("/v1/messages"):
        return str(answer.error["message"])
    assert list(answer.json) == ["type", "error"]
    assert list(answer.json["error"]) == ["type", "message"]
    return str(answer.json["error"]["message"])


def check(path: str, answer: Answer, sent: Any) -> None:
    assert answer.status in FINE, f"{answer.status} {answer.body!r} for {sent!r}"
    if answer.status != 200:
        assert message_of(path, answer)
    elif str(answer.headers["Content-Type"]).startswith("text/event-stream"):
        assert answer.body.endswith(b"\n\n")
        assert b"Internal server error" not in answer.body
        assert b"Traceback" not in answer.body
        assert b"0x7" not in answer.body


@pytest.mark.parametrize("path", PATHS)
def test_the_bodies_from_which_the_wrong_ones_are_made_are_right(servers: Mapping[str, Server], path: str) -> None:
    for body in BODIES[path]:
        answer = servers[path].post(path, body)
        assert answer.status == 200, answer.body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "sent", [b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b"{}", b"[" * 3000, b'{"a":' * 30 + b"1" + b"}" * 30]
)
def test_what_is_no_request_is_refused(servers: Mapping[str, Server], path: str, sent: bytes) -> None:
    answer = servers[path].post(path, sent)
    assert answer.status == 400
    check(path, answer, sent)


@pytest.mark.parametrize("path", [path for path in PATHS if "abort" not in path])
def test_another_media_type_is_refused(servers: Mapping[str, Server], path: str) -> None:
    answer = servers[path].post(path, BODIES[path][0], {"Content-Type": "text/plain"})
    assert answer.status == 400
    assert "application/json" in message_of(path, answer)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_the_limit_is_refused(servers: Mapping[str, Server], path: str) -> None:
    answer = servers[path].post(path, b'{"a": "' + b"x" * 200_000 + b'"}')
    assert answer.status == 413
    assert "200000 bytes" in message_of(path, answer)


@pytest.mark.parametrize("path", [path for path in PATHS if "abort" not in path])
def test_a_model_that_is_not_served_is_a_404(servers: Mapping[str, Server], path: str) -> None:
    for body in BODIES[path]:
        answer = servers[path].post(path, body | {"model": "other"})
        assert answer.status == 404
        assert message_of(path, answer) == "The model `other` does not exist. Valid aliases: tiny."


Place = tuple[Any, ...]


def places(value: Any, here: Place = ()) -> list[Place]:
    """Every place inside a JSON value that can hold something else."""
    found = [here] if here else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        found += places(inner, (*here, key))
    return found


def put(value: Any, place: Place, new: Any) -> Any:
    changed = copy.deepcopy(value)
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = new
    return changed


ODD = [
    *(None, True, -1, 0, 1, 2.5, 2**31, 2**63, -(2**63) - 1, 1e300, "", "x", "5", "\x00", "x" * 5000),
    *([], {}, [[]], [None], {"a": None}, [-1], [2**40]),
]
odd_values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def wrong_requests(draw: st.DrawFn) -> tuple[str, Any]:
    path = draw(st.sampled_from(PATHS))
    body = draw(st.sampled_from(BODIES[path]))
    for _ in range(draw(st.integers(1, 2))):
        body = put(body, draw(st.sampled_from(places(body))), draw(odd_values))
    return path, body


@pytest.mark.parametrize("path", PATHS)
def test_every_field_with_every_odd_value_has_an_answer(servers: Mapping[str, Server], path: str) -> None:
    for body in BODIES[path]:
        for place in places(body):
            for odd in (None, -1, 2**63, 1e300, "x", {}, [None]):
                wrong = put(body, place, odd)
                check(path, servers[path].post(path, wrong), (place, odd))
    assert servers[path].get("/health").status == 200


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(request=wrong_requests())
def test_requests_that_went_wrong_in_two_places_have_an_answer(
    servers: Mapping[str, Server], request: tuple[str, Any]
) -> None:
    path, body = request
    check(path, servers[path].post(path, body), body)
    assert servers[path].get("/health").status == 200
