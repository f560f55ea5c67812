"""The dialects over HTTP: the official clients talk to a running server, and the split deployment says the same, event by event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from serving import Answer, Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.dialects import Dialect, messages, responses

from .clients import read_anthropic_stream, read_openai_stream, valid_message, valid_response

Json = Any
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2.0, "é"]}}</tool_call>'
SAID = f"<think>Two numbers.</think>Adding.{CALL}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def server(tiny_model: Callable[..., Path]) -> Iterator[Server]:
    """Every route in one process. The prompt is what the user said, and the engine says it again."""
    config = ModeConfig(
        Mode.STANDARD,
        model=str(tiny_model("qwen3")),
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
        served_model_names=("m",),
        scale_out=True,
        access_log=False,
        tool_call_parser="hermes",
        reasoning_parser="think",
        engine=EngineOptions(backend="echo", args={"eos_after_prompt": True}),
    )
    with serving(make_app(config)) as running:
        yield running


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 500,
    "messages": [{"role": "user", "content": SAID}],
    "tools": [{"name": "add", "input_schema": SCHEMA}],
}
RESPONSE: dict[str, Any] = {
    "model": "m",
    "max_output_tokens": 500,
    "input": SAID,
    "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}],
}


# ---------------------------------------------------------------------------------------------- official clients


def test_anthropic_client_gets_a_message(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(**MESSAGE)
    assert message.id.startswith("msg_")
    kinds = [block.type for block in message.content]
    assert kinds.count("tool_use") == 1
    assert {"thinking", "text"} <= set(kinds)
    call = next(block for block in message.content if block.type == "tool_use")
    assert (call.name, call.input) == ("add", {"a": 1, "b": [2.0, "é"]})
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    assert valid_message(message.model_dump()) == message


def test_anthropic_client_joins_its_stream_to_the_same_message(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**MESSAGE)
    with claude.messages.stream(**MESSAGE) as stream:
        kinds = [event.type for event in stream]
        joined = stream.get_final_message()
    assert joined.model_dump(exclude={"id", "content"}) == whole.model_dump(exclude={"id", "content"})
    for one, other in zip(joined.content, whole.content, strict=True):
        own = {"signature", "id", "parsed_output"}
        assert one.model_dump(exclude=own) == other.model_dump(exclude=own)
    assert {"text", "thinking", "signature", "input_json", "message_stop"} <= set(kinds)


def test_anthropic_client_is_told_what_is_wrong(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"body\.max_tokens") as caught:
        claude.messages.create(**{**MESSAGE, "max_tokens": 0})
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "1 validation error:\n  body.max_tokens: Value error, max_tokens must be positive",
        },
    }


def test_anthropic_stop_sequences_end_the_message(claude: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {
        "model": "m",
        "max_tokens": 90,
        "messages": [{"role": "user", "content": "one two three"}],
    }
    message = claude.messages.create(**request, stop_sequences=["two"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")
    (block,) = message.content
    assert block.type == "text"
    assert block.text.endswith("one ")
    with claude.messages.stream(**request, stop_sequences=["two"]) as stream:
        joined = stream.get_final_message()
    assert (joined.stop_reason, joined.stop_sequence) == ("stop_sequence", "two")
    assert [one.text for one in joined.content if one.type == "text"] == [block.text]
    cut = claude.messages.create(**{**request, "max_tokens": 3})
    assert cut.stop_reason == "max_tokens"


def test_openai_client_gets_a_response(gpt: openai.OpenAI) -> None:
    response = gpt.responses.create(**RESPONSE, instructions="Say: ", metadata={"k": "v"})
    assert response.id.startswith("resp_")
    assert response.status == "completed"
    kinds = [item.type for item in response.output]
    assert kinds.count("function_call") == 1
    assert {"reasoning", "message"} <= set(kinds)
    call = next(item for item in response.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "b": [2.0, "é"]})
    assert "Adding." in response.output_text
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("Say: ", {"k": "v"}, 500)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    valid_response(response.model_dump())


def test_openai_client_joins_its_stream_to_the_same_response(gpt: openai.OpenAI) -> None:
    whole = gpt.responses.create(**RESPONSE)
    with gpt.responses.stream(**RESPONSE) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.usage == whole.usage
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-1] == "response.completed"


def test_openai_client_sees_where_a_response_was_cut(gpt: openai.OpenAI) -> None:
    response = gpt.responses.create(model="m", input="one two three", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in response.output if item.type == "message"] == ["incomplete"]


def test_openai_client_gets_the_logprobs_it_includes(gpt: openai.OpenAI) -> None:
    response = gpt.responses.create(
        model="m", input="naïve", max_output_tokens=60, include=["message.output_text.logprobs"], top_logprobs=0
    )
    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert part.text in "".join(one.token for one in part.logprobs)


def test_custom_tools_take_plain_text(gpt: openai.OpenAI) -> None:
    said = '<tool_call>{"name": "shell", "arguments": {"input": "ls \\"a b\\"\\n"}}</tool_call>'
    request: dict[str, Any] = {"model": "m", "input": said, "max_output_tokens": 500}
    request["tools"] = [{"type": "custom", "name": "shell"}]
    (call,) = [item for item in gpt.responses.create(**request).output if item.type == "custom_tool_call"]
    assert (call.name, call.input) == ("shell", 'ls "a b"\n')
    pieces = [
        event.delta
        for event in gpt.responses.create(**request, stream=True)
        if event.type == "response.custom_tool_call_input.delta"
    ]
    assert "".join(pieces) == call.input


# ---------------------------------------------------------------------------------------------- the split deployment


def ok(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


def named_events(answer: Answer) -> list[Json]:
    """The events of a stream, each under its own name."""
    assert answer.status == 200, answer.body
    events = []
    for block in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def engine_events(answer: Answer) -> list[Json]:
    assert answer.status == 200, answer.body
    lines = answer.body.decode().removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def comparable(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items() if key != "created_at"}
    return [comparable(one) for one in value] if isinstance(value, list) else value


SAME = {"X-Request-Id": "same"}
REQUESTS: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "message": (messages, MESSAGE),
    "message cut": (messages, {**MESSAGE, "max_tokens": 20}),
    "response": (responses, {**RESPONSE, "request_id": "resp_same"}),
    "response cut": (responses, {**RESPONSE, "request_id": "resp_same", "max_output_tokens": 20}),
    "response with logprobs": (
        responses,
        {
            **RESPONSE,
            "request_id": "resp_same",
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "tools": [],
        },
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_whole_answers_are_equal(server: Server, name: str) -> None:
    dialect, body = REQUESTS[name]
    coupled = ok(server.post(dialect.PATH, body, SAME))
    rendered = ok(server.post(f"{dialect.PATH}/render", body, SAME))
    split = ok(
        server.post(
            f"{dialect.PATH}/derender",
            {
                "model": "m",
                f"{dialect.NAME}_request": body,
                "generate_response": ok(server.post("/inference/v1/generate", rendered)),
                "prompt_token_ids": rendered["token_ids"],
            },
        )
    )
    assert comparable(split) == comparable(coupled)
    assert rendered["request_id"].removeprefix("chatcmpl-") in coupled["id"]


@pytest.mark.parametrize("first", ["request", "state"])
@pytest.mark.parametrize("name", REQUESTS)
def test_streams_are_equal(server: Server, name: str, first: str) -> None:
    """Chunk by chunk the derender stage leaves repetitions empty; who holds the stream fills them in by the dialect's own `gather`."""
    dialect, body = REQUESTS[name]
    body = {**body, "stream": True, "return_derender_state": first == "state"}
    coupled = named_events(server.post(dialect.PATH, body, SAME))
    rendered = ok(server.post(f"{dialect.PATH}/render", body, SAME))
    state = rendered.pop("derender_state", None)
    events: list[Json] = []
    for chunk in engine_events(server.post("/inference/v1/generate", rendered)):
        call: dict[str, Json] = {"stream": True, "generate_chunk": chunk, "stream_state": state}
        if state is None:
            call |= {f"{dialect.NAME}_request": body, "model": "m", "prompt_token_ids": rendered["token_ids"]}
        answer = ok(server.post(f"{dialect.PATH}/derender", call))
        state = answer["stream_state"]
        events += answer["events"]
        assert len(json.dumps(state["carry"])) < 300
    complete = dialect.gather(dialect.parse(body)) or list
    assert comparable(complete(events)) == comparable(coupled)


def test_streams_hold_valid_events_that_join_to_the_whole_answer(server: Server) -> None:
    message = ok(server.post("/v1/messages", MESSAGE, SAME))
    streamed = named_events(server.post("/v1/messages", {**MESSAGE, "stream": True}, SAME))
    assert read_anthropic_stream(streamed) == valid_message(message)
    body = {**RESPONSE, "request_id": "resp_same"}
    response = ok(server.post("/v1/responses", body))
    events = named_events(server.post("/v1/responses", {**body, "stream": True}))
    read_openai_stream(events)
    assert comparable(events[-1]["response"]) == comparable(response)
