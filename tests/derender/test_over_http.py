"""What an answer carries beside its text, through the derender routes: whole, chunk by chunk, and over one connection."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import Stream
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from serving import Server

from scaleout.dialects import DIALECTS
from scaleout.routes.keys import STAGES
from scaleout.tokenizer import Tokenizer
from tests.derender.piping import (
    DONE,
    EVENT_STREAM,
    SAME,
    chunk,
    chunks_of,
    context_event,
    context_key,
    context_of,
    data_event,
    derender,
    engine_stream,
    payloads,
    render,
)
from tests.dialects.clients import read_anthropic_stream, read_openai_stream, valid_message, valid_response

Json = Any
CHAT, COMPLETIONS, MESSAGES, RESPONSES = (dialect.PATH for dialect in DIALECTS)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 27}}\n</tool_call>'
THOUGHT = "<think>\nA secret: 🫠.\n</think>"
SAID = f"{THOUGHT}\n\nAdding 🫠 up.{CALL}"
"""The face is a character of several ids in this vocabulary."""


@pytest.fixture(scope="module")
def tokenizer(server: Server) -> Tokenizer:
    return server.within(server.app[STAGES].front).tokenizer


@pytest.fixture(scope="module")
def ids_of(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def ok(server: Server, path: str, body: Json) -> Json:
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    return answer.json


MESSAGE: Json = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}


def chat_request(**more: Json) -> Json:
    return {"messages": [{"role": "user", "content": "15 + 27?"}], "tools": TOOLS, **more}


# Each way takes the request, the ids that an engine made, and gives the chunks of the answer, a whole one being its only chunk.


def in_one_piece(server: Server, request: Json, ids: list[int], prompt: list[int], usage: Json) -> list[Json]:
    generated = {
        "request_id": "r",
        "choices": [{**chunk(ids, "stop")["choices"][0], "logprobs": logprobs(ids)}],
        "usage": usage,
    }
    body = {"chat_request": request, "generate_response": generated, "prompt_token_ids": prompt}
    return [ok(server, f"{CHAT}/derender", body)]


def engine_events(ids: list[int], usage: Json) -> list[Json]:
    events = []
    for n, one in enumerate(ids):
        event = chunk([one], "stop" if n == len(ids) - 1 else None)
        event["choices"][0]["logprobs"] = logprobs([one])
        events.append(event)
    return [*events, {"request_id": "r", "choices": [], "usage": usage}]


def chunk_by_chunk(server: Server, request: Json, ids: list[int], prompt: list[int], usage: Json) -> list[Json]:
    state, chunks = None, []
    for event in engine_events(ids, usage):
        body = {"stream": True, "generate_chunk": event, "stream_state": state}
        if state is None:
            body |= {"chat_request": request, "prompt_token_ids": prompt}
        answer = ok(server, f"{CHAT}/derender", body)
        state = answer["stream_state"]
        chunks.append(answer["chunk"])
    return chunks


def over_one_connection(server: Server, request: Json, ids: list[int], prompt: list[int], usage: Json) -> list[Json]:
    request = {**request, "stream": True, "stream_options": {"include_usage": True}}
    events = [data_event(event) for event in engine_events(ids, usage)]
    answer = derender(server, CHAT, context_event(chat_request=request, prompt_token_ids=prompt), *events, DONE)
    assert answer.status == 200, answer.body
    return chunks_of(answer.body)


Way = Callable[[Server, Json, list[int], list[int], Json], list[Json]]
WAYS: list[Way] = [in_one_piece, chunk_by_chunk, over_one_connection]
every_way = pytest.mark.parametrize("way", WAYS)
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}}


def logprobs(ids: list[int]) -> Json:
    top = [{"token_id": one, "logprob": -0.5, "rank": 1} for one in ids]
    return {"content": [{**one, "top_logprobs": [one]} for one in top]}


def choices_of(chunks: list[Json]) -> list[Json]:
    return [choice for one in chunks for choice in one["choices"]]


def positions_of(chunks: list[Json]) -> list[Json]:
    return [entry for choice in choices_of(chunks) if choice["logprobs"] for entry in choice["logprobs"]["content"]]


def ids_in(chunks: list[Json]) -> list[int]:
    return [one for choice in choices_of(chunks) for one in choice["token_ids"] or ()]


# ---------------------------------------------------------------------------------------------- ids and logprobs (C27)


@every_way
def test_ids_and_logprobs_survive_the_parsers(
    server: Server, tokenizer: Tokenizer, ids_of: Callable[[str], list[int]], way: Way
) -> None:
    ids, prompt = ids_of(f"Ok 🫠{CALL}<|im_end|>"), [1, 2, 3]
    assert ids[-1] == tokenizer.eos_id
    request = chat_request(return_token_ids=True, logprobs=True, top_logprobs=0, stream=True)
    chunks = way(server, request, ids, prompt, USAGE)
    assert ids_in(chunks) == ids
    assert chunks[0]["prompt_token_ids"] == prompt
    assert all(one["prompt_token_ids"] is None for one in chunks[1:])
    positions = positions_of(chunks)
    assert [bytes(entry["bytes"]) for entry in positions] == [tokenizer.token_bytes(one) for one in ids]
    assert [32, 240, 159] in [entry["bytes"] for entry in positions]
    text = "".join(entry["token"] for entry in positions)
    assert text == f"Ok 🫠{CALL}<|im_end|>"
    assert {choice["finish_reason"] for choice in choices_of(chunks)} - {None} == {"tool_calls"}


@every_way
def test_without_being_asked_no_ids_are_shown(server: Server, ids_of: Callable[[str], list[int]], way: Way) -> None:
    chunks = way(server, chat_request(), ids_of(SAID), [1], USAGE)
    assert all(choice["token_ids"] is None for choice in choices_of(chunks))
    assert all(one["prompt_token_ids"] is None for one in chunks)


@every_way
def test_hidden_thoughts_come_out_by_no_door(
    server: Server, tokenizer: Tokenizer, ids_of: Callable[[str], list[int]], way: Way
) -> None:
    ids = ids_of(f"{SAID}<|im_end|>")
    asked = {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    shown = way(server, chat_request(**asked), ids, [1], USAGE)
    hidden = way(server, chat_request(**asked, include_reasoning=False), ids, [1], USAGE)
    thoughts = len(ids_of(THOUGHT))
    assert ids_in(shown) == ids
    assert ids_in(hidden) == ids[thoughts:]
    assert len(positions_of(hidden)) == len(ids) - thoughts
    assert "secret" in json.dumps(shown)
    assert "secret" not in json.dumps(hidden)
    assert "secret" not in "".join(entry["token"] for entry in positions_of(hidden))
    said = "".join((choice.get("delta") or choice.get("message"))["content"] or "" for choice in choices_of(hidden))
    assert said.strip() == "Adding 🫠 up."
    # What was thought was paid for all the same.
    assert hidden[-1]["usage"] == shown[-1]["usage"]


@every_way
def test_usage_tells_thought_and_cached_tokens(server: Server, ids_of: Callable[[str], list[int]], way: Way) -> None:
    ids = ids_of(f"{SAID}<|im_end|>")
    usage = way(
        server, chat_request(), ids, [1], {**USAGE, "completion_tokens": len(ids), "total_tokens": 9 + len(ids)}
    )[-1]["usage"]
    assert usage["prompt_tokens"] == 9
    assert usage["completion_tokens"] == len(ids)
    assert usage["total_tokens"] == 9 + len(ids)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(ids_of(THOUGHT))}


@pytest.mark.parametrize("streaming", [False, True])
def test_the_other_dialects_tell_them_too(server: Server, ids_of: Callable[[str], list[int]], streaming: bool) -> None:
    ids = ids_of(f"{SAID}<|im_end|>")
    usage = {**USAGE, "completion_tokens": len(ids), "total_tokens": 9 + len(ids)}
    contexts: dict[str, Json] = {
        MESSAGES: MESSAGE,
        RESPONSES: {"input": "x"},
    }
    found = {}
    for path, request in contexts.items():
        context = {context_key(path): request, "prompt_token_ids": [1]}
        if streaming:
            events = [data_event(event) for event in engine_events(ids, usage)]
            last = [
                json.loads(one)
                for one in payloads(derender(server, path, context_event(**context), *events, DONE).body)
            ]
            ends = [one for one in last if one["type"] in ("message_delta", "response.completed")]
            found[path] = ends[-1]["usage"] if path == MESSAGES else ends[-1]["response"]["usage"]
        else:
            generated = {**chunk(ids, "stop"), "usage": usage}
            found[path] = ok(server, f"{path}/derender", {**context, "generate_response": generated})["usage"]
    assert found[MESSAGES]["cache_read_input_tokens"] == 8
    assert found[MESSAGES]["input_tokens"] == 1
    assert found[MESSAGES]["output_tokens"] == len(ids)
    assert found[RESPONSES]["input_tokens_details"]["cached_tokens"] == 8
    assert found[RESPONSES]["output_tokens_details"]["reasoning_tokens"] == len(ids_of(THOUGHT))
    assert found[RESPONSES]["total_tokens"] == 9 + len(ids)


def test_transfer_parameters_and_prompt_logprobs_of_an_engine_are_passed_on(
    server: Server, ids_of: Callable[[str], list[int]]
) -> None:
    prompt = ids_of("One two")
    entries = [None, {str(prompt[1]): {"logprob": -1.5, "rank": 3}}]
    generated = {
        **chunk(ids_of("three"), "stop"),
        "kv_transfer_params": {"remote": [1, "x"]},
        "ec_transfer_params": {"encoder": None},
        "prompt_logprobs": entries,
    }
    answer = ok(server, f"{CHAT}/derender", {"chat_request": chat_request(), "generate_response": generated})
    assert answer["kv_transfer_params"] == {"remote": [1, "x"]}
    assert answer["ec_transfer_params"] == {"encoder": None}
    shown = {"logprob": -1.5, "rank": 3, "decoded_token": " two"}
    assert answer["prompt_logprobs"] == [None, {str(prompt[1]): shown}]
    request = {"prompt": "One two", "echo": True, "logprobs": 0, "prompt_logprobs": 0}
    (choice,) = ok(
        server,
        f"{COMPLETIONS}/derender",
        {"completion_request": request, "generate_responses": [generated], "prompt_token_ids": [prompt]},
    )["choices"]
    assert choice["text"] == "One twothree"
    assert choice["prompt_logprobs"] == [None, {str(prompt[1]): shown}]


# ---------------------------------------------------------------------------------------------- hostile values (C29)


def test_ten_million_ids_are_refused_and_leave_no_trace(server: Server) -> None:
    choices = b'{"choices":[{"index":0,"token_ids":[' + b"5," * 9_999_999 + b"5]}]}"
    request = json.dumps(chat_request()).encode()
    began = time.process_time()
    answers = {
        "body.generate_response": server.post(
            f"{CHAT}/derender", b'{"chat_request":%b,"generate_response":%b}' % (request, choices)
        ),
        "body.generate_chunk": server.post(
            f"{CHAT}/derender", b'{"stream":true,"chat_request":%b,"generate_chunk":%b}' % (request, choices)
        ),
        "body.events.1": derender(
            server, CHAT, context_event(chat_request=chat_request(), prompt_token_ids=[1]), data_event(choices)
        ),
    }
    for place, answer in answers.items():
        assert answer.status == 400
        assert answer.error["param"] == f"{place}.choices.0.token_ids"
    assert time.process_time() - began < 10
    assert ok(server, f"{CHAT}/derender", {"chat_request": chat_request(), "generate_response": chunk([5], "stop")})


@pytest.mark.parametrize("count", [18446744073709551615, -1, 2**53, 1.5, "x", [1], {}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_impossible_counts_are_refused(server: Server, path: str, count: Json) -> None:
    requests: dict[str, Json] = {
        CHAT: chat_request(),
        COMPLETIONS: {"prompt": "x"},
        MESSAGES: MESSAGE,
        RESPONSES: {"input": "x"},
    }
    context = {context_key(path): requests[path], "prompt_tokens": count, "prompt_token_ids": [1]}
    generated = chunk([5], "stop")
    if path == COMPLETIONS:
        whole = {**context, "prompt_token_ids": [[1]], "generate_responses": [generated]}
    else:
        whole = {**context, "generate_response": generated}
    for body in (whole, {**context, "stream": True, "generate_chunk": generated}):
        if body is whole and path == COMPLETIONS and count == [1]:
            continue
        answer = server.post(f"{path}/derender", body)
        assert answer.status == 400
        if path != MESSAGES:
            assert answer.error["param"].startswith("body.prompt_tokens")
    answer = derender(server, path, context_event(**context), data_event(generated), DONE)
    assert answer.status == 400
    assert b"prompt_tokens" in answer.body


# ---------------------------------------------------------------------------------------------- states from render


ASKED: dict[str, tuple[str, Json]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": SAID}], "max_tokens": 200, "tools": TOOLS}),
    "chat with three choices": (
        CHAT,
        {"messages": [{"role": "user", "content": SAID}], "max_tokens": 200, "tools": TOOLS, "n": 3},
    ),
    "chat with a stop string": (
        CHAT,
        {"messages": [{"role": "user", "content": SAID}], "max_tokens": 200, "stop": ["up"]},
    ),
    "completion": (COMPLETIONS, {"prompt": "One two 🫠", "max_tokens": 20, "echo": True, "logprobs": 1}),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_state_from_render_spares_the_prompt(server: Server, name: str) -> None:
    """Chunk by chunk with the state that render returned: neither request nor prompt is sent again."""
    path, body = ASKED[name]
    body = {"model": "m", **body, "stream": True, "return_derender_state": True}
    coupled = chunks_of(server.post(path, body, SAME).body)
    rendered = render(server, path, body)
    states = dict.fromkeys(range(body.get("n", 1)), rendered.pop("derender_state"))
    split = []
    for event in chunks_of(engine_stream(server, rendered)):
        index = event["choices"][0]["index"]
        answer = ok(
            server, f"{path}/derender", {"stream": True, "generate_chunk": event, "stream_state": states[index]}
        )
        states[index] = answer["stream_state"]
        split.append(answer["chunk"])
    assert len(json.dumps(states[0])) < 1024
    for index in states:
        own = [said(one, index) for one in split]
        assert [one for one in own if one] == [one for one in (said(one, index) for one in coupled) if one]


def said(one: Json, index: int) -> Json:
    """What a chunk says of one choice, None where that is nothing."""
    for choice in one["choices"]:
        delta = choice.get("delta") or {"text": choice.get("text")}
        if choice["index"] == index and (
            any({**delta, "role": None}.values()) or choice["finish_reason"] or choice["logprobs"]
        ):
            return choice
    return None


def test_a_state_of_another_route_is_stale(server: Server) -> None:
    body = {"model": "m", **ASKED["chat"][1], "return_derender_state": True}
    state = render(server, CHAT, body)["derender_state"]
    for answer in (
        server.post(f"{COMPLETIONS}/derender", {"stream": True, "generate_chunk": chunk([5]), "stream_state": state}),
        derender(server, COMPLETIONS, context_event(stream_state=state), data_event(chunk([5])), DONE),
    ):
        assert answer.status == 400
        assert "another route" in answer.error["message"]


# ---------------------------------------------------------------------------------------------- official clients


@pytest.fixture
def gpt(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def split_body(server: Server, path: str, body: Json) -> tuple[Json, bytes]:
    """A derender request of a whole result, and the event stream of the same answer."""
    rendered = render(server, path, body)
    context = context_of(path, body, rendered)
    generated = ok(server, "/inference/v1/generate", rendered)
    whole = {**context, "generate_response": generated}
    if path == COMPLETIONS:
        counts = {"prompt_tokens": [context["prompt_tokens"]], "prompt_token_ids": [context["prompt_token_ids"]]}
        whole = {**context, **counts, "generate_responses": [generated]}
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    rendered = render(server, path, streaming)
    context = context_event(**context_of(path, streaming, rendered))
    return whole, context + engine_stream(server, rendered)


def test_the_openai_client_reads_derendered_chats(server: Server, gpt: openai.OpenAI) -> None:
    body = {"model": "m", **ASKED["chat"][1], "logprobs": True, "top_logprobs": 1}
    request, stream = split_body(server, CHAT, body)
    whole = gpt.post("/chat/completions/derender", body=request, cast_to=ChatCompletion)
    ChatCompletion.model_validate(whole.model_dump(exclude_unset=True))
    (choice,) = whole.choices
    assert (choice.message.content or "").strip() == "Adding 🫠 up."
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"a": 15, "b": 27}
    chunks = list(
        gpt.post(
            "/chat/completions/derender",
            content=stream,
            options={"headers": EVENT_STREAM},
            cast_to=ChatCompletionChunk,
            stream=True,
            stream_cls=Stream[ChatCompletionChunk],
        )
    )
    for one in chunks:
        ChatCompletionChunk.model_validate(one.model_dump(exclude_unset=True))
    deltas = [one.choices[0].delta for one in chunks if one.choices]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    pieces = [piece.function for delta in deltas for piece in delta.tool_calls or () if piece.function]
    assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments
    assert [piece.name for piece in pieces if piece.name] == ["add"]
    assert chunks[-1].usage == whole.usage


def test_the_openai_client_reads_derendered_completions(server: Server, gpt: openai.OpenAI) -> None:
    body = {"model": "m", "prompt": "One two 🫠", "max_tokens": 20, "logprobs": 1}
    request, stream = split_body(server, COMPLETIONS, body)
    whole = gpt.post("/completions/derender", body=request, cast_to=Completion)
    Completion.model_validate(whole.model_dump(exclude_unset=True))
    chunks = list(
        gpt.post(
            "/completions/derender",
            content=stream,
            options={"headers": EVENT_STREAM},
            cast_to=Completion,
            stream=True,
            stream_cls=Stream[Completion],
        )
    )
    assert "".join(choice.text for one in chunks for choice in one.choices) == whole.choices[0].text == "One two 🫠"
    assert chunks[-1].usage == whole.usage


def test_the_openai_client_reads_derendered_responses(server: Server) -> None:
    tools = [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}]
    body = {"model": "m", "request_id": "resp_1", "input": SAID, "max_output_tokens": 200, "tools": tools}
    request, stream = split_body(server, RESPONSES, body)
    whole = valid_response(ok(server, f"{RESPONSES}/derender", request))
    answer = server.post(f"{RESPONSES}/derender", stream, EVENT_STREAM)
    joined, last = read_openai_stream([json.loads(one) for one in payloads(answer.body)])
    assert last.output_text == joined.output_text == whole.output_text
    assert [item.type for item in last.output] == ["reasoning", "message", "function_call"]
    assert [item.type for item in whole.output] == [item.type for item in last.output]
    assert last.usage == whole.usage


def test_the_anthropic_client_reads_derendered_messages(server: Server) -> None:
    tools = [{"name": "add", "input_schema": PARAMETERS}]
    body = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": SAID}], "tools": tools}
    request, stream = split_body(server, MESSAGES, body)
    whole = valid_message(ok(server, f"{MESSAGES}/derender", request))
    answer = server.post(f"{MESSAGES}/derender", stream, EVENT_STREAM)
    joined = read_anthropic_stream([json.loads(one) for one in payloads(answer.body)])
    assert [block.type for block in joined.content] == ["thinking", "text", "tool_use"]
    assert joined == whole
