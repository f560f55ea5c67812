"""How long a message's prompt would be is what the message then costs; and it can be asked where there is no engine."""

from __future__ import annotations

import anthropic
import pytest
from serving import Server

from scaleout.config import Mode

from .conftest import Serve

PATH = "/v1/messages/count_tokens"
TEMPLATE = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BODY = {
    "model": "tiny",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "How many tokens is this?"}],
    "tools": [{"name": "add", "input_schema": {"type": "object"}}],
}


@pytest.fixture
def server(serve: Serve) -> Server:
    return serve(Mode.STANDARD, chat_template=TEMPLATE, tool_call_parser="hermes")


def test_the_count_is_what_the_message_costs(server: Server) -> None:
    message = server.post("/v1/messages", {**BODY, "max_tokens": 1})
    assert message.status == 200, message.body
    assert server.post(PATH, BODY).json == {"input_tokens": message.json["usage"]["input_tokens"]}
    without_tools = server.post(PATH, {**BODY, "tools": []}).json["input_tokens"]
    assert 0 < without_tools < message.json["usage"]["input_tokens"]


def test_the_official_client_counts(server: Server) -> None:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0) as client:
        count = client.messages.count_tokens(**BODY)  # type: ignore[arg-type]
        assert count.input_tokens == server.post(PATH, BODY).json["input_tokens"]
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.count_tokens(**{**BODY, "model": "other"})  # type: ignore[arg-type]


def test_no_engine_and_no_room_are_needed(serve: Serve) -> None:
    server = serve(Mode.RENDER_ONLY, chat_template=TEMPLATE, tool_call_parser="hermes", max_model_len=64)
    long = {**BODY, "messages": [{"role": "user", "content": "word " * 100}]}
    assert server.post(PATH, long).json["input_tokens"] > 100
    wrong = server.post(PATH, {**BODY, "messages": 5})
    assert (wrong.status, wrong.json["type"], wrong.json["error"]["type"]) == (400, "error", "invalid_request_error")
