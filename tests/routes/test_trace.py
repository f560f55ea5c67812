"""A caller's trace goes on to the engine and into the log, and what is no trace goes nowhere."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Server

from scaleout.config import Mode
from scaleout.core import GenerateRequest, TokenDelta
from scaleout.generate.engine import Over
from scaleout.logs import JsonLines
from scaleout.routes.keys import STAGES

from .conftest import Serve

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
REQUESTS: dict[str, tuple[Mode, dict[str, Any]]] = {
    "/v1/chat/completions": (Mode.STANDARD, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    "/v1/responses": (Mode.STANDARD, {"input": "x", "max_output_tokens": 2, "stream": True}),
    "/inference/v1/generate": (Mode.TOKENS_ONLY, {"token_ids": [5], "sampling_params": {"max_tokens": 2}}),
}


class Watched:
    """An engine, and what it was asked."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.seen: list[GenerateRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        self.seen.append(request)
        answer: AsyncIterator[TokenDelta] = self._engine.generate(request, over)
        return answer


def watch(server: Server) -> list[GenerateRequest]:
    """What the engine is asked from now on."""
    stages = server.app[STAGES]
    watched = Watched(stages.engine)
    stages.engine = watched  # type: ignore[assignment]
    return watched.seen


@pytest.mark.parametrize("path", REQUESTS)
def test_the_engine_is_told_the_trace(serve: Serve, path: str) -> None:
    mode, body = REQUESTS[path]
    server = serve(mode, chat_template=TEMPLATE)
    seen = watch(server)
    assert server.post(path, body, {"traceparent": PARENT, "tracestate": "a=1,b=2"}).status == 200
    assert server.post(path, body, {"traceparent": PARENT}).status == 200
    assert server.post(path, body).status == 200
    told = [request.trace_headers for request in seen]
    assert told == [{"traceparent": PARENT, "tracestate": "a=1,b=2"}, {"traceparent": PARENT}, None]


@pytest.mark.parametrize(
    "parent", ["", "x", PARENT.upper(), PARENT[:-3], f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{TRACE}-{'0' * 16}-01"]
)
def test_what_is_no_trace_is_passed_over(serve: Serve, parent: str) -> None:
    server = serve(Mode.TOKENS_ONLY)
    seen = watch(server)
    path = "/inference/v1/generate"
    assert server.post(path, REQUESTS[path][1], {"traceparent": parent, "tracestate": "a=1"}).status == 200
    assert [request.trace_headers for request in seen] == [None]


def test_json_lines_hold_the_request_with_its_ids(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scaleout.access")
    server = serve(Mode.RENDER_ONLY, access_log=True, log_format="json", disable_access_log_for_endpoints=("/health",))
    server.get("/health")
    server.post("/tokenize?a=%0A1", {"prompt": "x"}, {"traceparent": PARENT, "X-Request-Id": "mine"})
    (record,) = [one for one in caplog.records if one.name == "scaleout.access"]
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert {key: told[key] for key in ("level", "logger", "method", "path", "status", "request_id", "trace_id")} == {
        "level": "INFO",
        "logger": "scaleout.access",
        "method": "POST",
        "path": "/tokenize",
        "status": 200,
        "request_id": "mine",
        "trace_id": TRACE,
    }
    assert told["ms"] >= 0


def test_a_stack_is_one_field_of_one_line() -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError as error:
        record = logging.LogRecord("n", logging.ERROR, "p", 1, "it %s", ("failed",), (ValueError, error, None))
    told = json.loads(JsonLines().format(record))
    assert told["message"] == "it failed"
    assert "ValueError: broken\nin two" in told["error"]
