"""What the coupled routes do to the engine, in every dialect: stop it at a stop string, let it go with the client, and fill silence."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from serving import Server

from scaleout.config import Mode
from scaleout.errors import EngineFailed
from scaleout.routes.keys import LIFECYCLE, STAGES

from .conftest import Serve
from .halting import Halting

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
ASK = [{"role": "user", "content": "one two three four five six"}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 500},
    "/v1/completions": {"prompt": ASK[0]["content"], "max_tokens": 500},
    "/v1/messages": {"model": "tiny", "messages": ASK, "max_tokens": 500},
    "/v1/responses": {"input": ASK[0]["content"], "max_output_tokens": 500},
}
STOP = {"/v1/messages": "stop_sequences"}


@pytest.fixture
def halting(serve: Serve) -> Callable[..., tuple[Server, Halting]]:
    """`halting(says=…, **settings)`: a standard server on such an engine."""

    def start(says: int, **settings: Any) -> tuple[Server, Halting]:
        server = serve(Mode.STANDARD, chat_template=TEMPLATE, **settings)
        engine = Halting(server.app[STAGES].engine, says)
        server.app[STAGES].engine = engine  # type: ignore[assignment]
        return server, engine

    return start


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
def test_the_engine_is_stopped_at_a_stop_string(
    halting: Callable[..., tuple[Server, Halting]], path: str, stream: bool
) -> None:
    server, engine = halting(says=100)
    answer = server.post(path, {**DIALECTS[path], STOP.get(path, "stop"): ["three"], "stream": stream})
    assert answer.status == 200
    text = answer.body.decode()
    assert "two" in text
    assert "three" not in text.replace('"stop_sequence":"three"', "").replace('"stop_reason":"three"', "")
    wait_until(lambda: engine.left == 1)
    assert engine.said < 6  # not "four five six"


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_at_its_stop_string_is_made_no_further(serve: Serve, stream: bool) -> None:
    """Choice i begins at the i-th word of the prompt, which is said again and again: the last one comes late to what stops the others."""
    server = serve(Mode.STANDARD)
    engine = server.app[STAGES].engine
    assert engine is not None
    prompt = "stop" + " go on" * 100
    ids = len(server.post("/tokenize", {"prompt": prompt}).json["tokens"])
    body = {"prompt": prompt, "n": 4, "temperature": 1, "max_tokens": 900, "stop": ["stop"], "stream": stream}
    answer = server.post("/v1/completions", {**body, "stream_options": {"include_usage": True}} if stream else body)
    assert answer.status == 200
    assert answer.body.count(b'"finish_reason":"stop"') == 4
    made = engine.stats().generated_tokens
    usage = json.loads(answer.body.split(b"data: ")[-2])["usage"] if stream else answer.json["usage"]
    assert ids < usage["completion_tokens"] <= made
    assert made - usage["completion_tokens"] < 10


def test_of_several_prompts_each_is_stopped_for_itself(halting: Callable[..., tuple[Server, Halting]]) -> None:
    server, engine = halting(says=100)
    prompts = [f"one two three {'four ' * i}stop five six" for i in range(3)]
    body = {"prompt": prompts, "max_tokens": 500, "stop": ["stop"], "stream": True}
    answer = server.post("/v1/completions", body)
    assert answer.status == 200
    assert answer.body.count(b'"finish_reason":"stop"') == 3
    wait_until(lambda: engine.left == 3)


def test_a_failure_in_a_stream_is_an_event_that_official_clients_raise(serve: Serve) -> None:
    server = serve(Mode.STANDARD, chat_template=TEMPLATE)
    stages = server.app[STAGES]
    stages.engine = Halting(stages.engine, says=4, fault=EngineFailed("The cable is out."))  # type: ignore[assignment]
    last: dict[str, str] = {}
    for path, body in DIALECTS.items():
        answer = server.post(path, {**body, "stream": True})
        assert answer.status == 200
        blocks = answer.body.decode().removesuffix("\n\n").split("\n\n")
        done = blocks[-1] == "data: [DONE]"
        assert done == (path in ("/v1/chat/completions", "/v1/completions"))
        last[path] = blocks[-2 if done else -1]
        number = len(blocks) - 1
    error = '{"error":{"message":"The cable is out.","type":"InternalServerError","param":null,"code":500}}'
    assert last["/v1/chat/completions"] == last["/v1/completions"] == f"data: {error}"
    told = '{"type":"error","error":{"type":"api_error","message":"The cable is out."}}'
    assert last["/v1/messages"] == f"event: error\ndata: {told}"
    flat = f'"sequence_number":{number},"code":"server_error","message":"The cable is out.","param":null'
    assert last["/v1/responses"] == f'event: error\ndata: {{"type":"error",{flat},{error[1:]}'

    base = f"http://127.0.0.1:{server.port}"
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="The cable is out"):
            list(client.chat.completions.create(model="tiny", messages=ASK, stream=True))  # type: ignore[arg-type]
        with pytest.raises(openai.APIError, match="The cable is out"):
            list(client.responses.create(model="tiny", input="one two three four five", stream=True))
    with (
        anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as other,
        pytest.raises(anthropic.APIStatusError, match="The cable is out"),
    ):
        list(other.messages.create(model="tiny", messages=ASK, max_tokens=50, stream=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
def test_a_client_that_goes_takes_its_request_along(
    halting: Callable[..., tuple[Server, Halting]], path: str, stream: bool
) -> None:
    server, engine = halting(says=3)
    body = json.dumps({**DIALECTS[path], "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: engine.said == 3)
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert engine.left == 0
        connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: engine.left == 1 and server.app[LIFECYCLE].in_flight == 0)


@pytest.mark.parametrize("path", DIALECTS)
def test_silence_is_filled_with_comments(halting: Callable[..., tuple[Server, Halting]], path: str) -> None:
    server, engine = halting(says=3, sse_keep_alive_interval=0.02)
    body = json.dumps({**DIALECTS[path], "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head.encode() + body)
        told = b""
        while told.count(b": keep-alive\n\n") < 3:
            told += connection.recv(4096)
        assert b"data: " in told
    wait_until(lambda: engine.left == 1)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (DIALECTS["/v1/chat/completions"], "/v1/chat/completions"),
        (DIALECTS["/v1/completions"], "/v1/completions"),
        (DIALECTS["/v1/responses"], "/v1/responses"),
    ],
)
def test_invocations_are_told_apart_by_their_own_field(serve: Serve, body: dict[str, Any], path: str) -> None:
    server = serve(Mode.STANDARD, chat_template=TEMPLATE)
    short = {key: 3 if key.startswith("max") else value for key, value in body.items()}
    named = ("id", "created", "created_at", "output")
    told, same = server.post("/invocations", short).json, server.post(path, short).json
    assert {k: v for k, v in told.items() if k not in named} == {k: v for k, v in same.items() if k not in named}
    streamed = server.post("/invocations", {**short, "stream": True})
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    nothing = server.post("/invocations", {"model": "tiny"})
    assert nothing.status == 400
    assert "`messages`" in nothing.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("forced", "asked", "counts", "running"),
    [
        (False, None, 0, False),
        (True, None, 1, False),
        (True, {"include_usage": False}, 1, False),
        (True, {"continuous_usage_stats": True}, 1, True),
        (False, {"include_usage": True}, 1, False),
    ],
)
def test_usage_may_end_every_stream(
    serve: Serve, path: str, forced: bool, asked: dict[str, bool] | None, counts: int, running: bool
) -> None:
    server = serve(Mode.STANDARD, enable_force_include_usage=forced, chat_template=TEMPLATE)
    body = DIALECTS[path] | {"max_tokens": 3, "stream": True, "ignore_eos": True}
    answer = server.post(path, body if asked is None else body | {"stream_options": asked})
    chunks = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    last = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert len(last) == counts
    assert [one["completion_tokens"] for one in last] == [3] * counts
    assert any(chunk["choices"] and chunk["usage"] for chunk in chunks) == running
