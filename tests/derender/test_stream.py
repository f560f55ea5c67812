"""One connection per answer: the engine's event stream in, the dialect's out, over HTTP in both directions at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from serving import Server, until

from scaleout.dialects import DIALECTS, chat
from scaleout.routes.derender_stream import StreamedAnswer
from scaleout.routes.keys import LIFECYCLE, STAGES
from scaleout.sse_reader import EventReader
from tests.derender.piping import (
    DONE,
    SAME,
    chunk,
    chunks_of,
    context_event,
    context_of,
    data_event,
    derender,
    engine_stream,
    payloads,
    pipe,
    piped,
    render,
    undated,
)

Json = Any
CHAT, COMPLETIONS, MESSAGES, RESPONSES = (dialect.PATH for dialect in DIALECTS)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2.0, "é"]}}</tool_call>'
SAID = f"<think>Two numbers.</think>Adding 🙂.{CALL}{CALL}Done."
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]


def chat_body(text: str = SAID, **more: Json) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300, "tools": TOOLS, **more}


MESSAGE = {
    "max_tokens": 300,
    "messages": [{"role": "user", "content": SAID}],
    "tools": [{"name": "add", "input_schema": SCHEMA}],
}
RESPONSE = {
    "request_id": "resp_same",
    "max_output_tokens": 300,
    "input": SAID,
    "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}],
}
USAGE = {"stream_options": {"include_usage": True}}
REQUESTS: dict[str, tuple[str, Json]] = {
    "chat": (CHAT, chat_body()),
    "chat with usage": (CHAT, chat_body(**USAGE)),
    "chat with usage all along": (
        CHAT,
        chat_body(stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    "chat with three choices": (CHAT, chat_body(n=3, **USAGE)),
    "chat with logprobs": (CHAT, chat_body(logprobs=True, top_logprobs=2)),
    "chat with ids": (CHAT, chat_body(return_token_ids=True)),
    "chat without thoughts": (CHAT, chat_body(include_reasoning=False, return_token_ids=True, logprobs=True)),
    "chat with one call": (CHAT, chat_body(parallel_tool_calls=False)),
    "chat without calls": (CHAT, chat_body(tool_choice="none")),
    "chat with a stop string": (CHAT, chat_body("a b c STOP d e f", stop=["STOP"], **USAGE)),
    "chat with stop strings in three choices": (CHAT, chat_body("a b c STOP d e f", stop=["STOP"], n=3, **USAGE)),
    "chat with a stop string shown": (CHAT, chat_body("a b STOP c", stop="STOP", include_stop_str_in_output=True)),
    "chat with a stop string that never comes": (CHAT, chat_body(stop=["never"], **USAGE)),
    "chat cut": (CHAT, chat_body(max_tokens=9)),
    "completion": (COMPLETIONS, {"prompt": "One two three", "max_tokens": 20, **USAGE}),
    "completion with echo": (COMPLETIONS, {"prompt": "One two", "max_tokens": 4, "echo": True, "logprobs": 2}),
    "completion with three choices": (COMPLETIONS, {"prompt": "One two", "max_tokens": 6, "n": 3, "logprobs": 1}),
    "completion with ids": (COMPLETIONS, {"prompt": "One two", "max_tokens": 6, "return_token_ids": True}),
    "completion with a stop string": (COMPLETIONS, {"prompt": "1 2 3 4", "max_tokens": 20, "stop": ["3"], **USAGE}),
    "message": (MESSAGES, MESSAGE),
    "message cut": (MESSAGES, {**MESSAGE, "max_tokens": 20}),
    "message with a stop sequence": (MESSAGES, {**MESSAGE, "stop_sequences": ["ing"]}),
    "response": (RESPONSES, RESPONSE),
    "response cut": (RESPONSES, {**RESPONSE, "max_output_tokens": 20}),
    "response with logprobs": (
        RESPONSES,
        {**RESPONSE, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
}


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def streamed(body: Json) -> Json:
    return {"model": "m", **body, "stream": True}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_piped_stream_is_the_coupled_one_byte_for_byte(server: Server, name: str) -> None:
    path, body = REQUESTS[name]
    body = streamed(body)
    coupled = server.post(path, body, SAME)
    assert coupled.status == 200, coupled.body
    rendered = render(server, path, body)
    answer = await pipe(url(server), path, context_of(path, body, rendered), rendered)
    assert undated(answer) == undated(coupled.body)
    assert len(payloads(answer)) > 3


@pytest.mark.parametrize("name", [name for name in REQUESTS if not name.startswith("response")])
async def test_the_state_that_render_returns_is_context_enough(server: Server, name: str) -> None:
    path, body = REQUESTS[name]
    body = streamed({**body, "return_derender_state": True})
    coupled = server.post(path, body, SAME)
    rendered = render(server, path, body)
    state = rendered.pop("derender_state")
    answer = await pipe(url(server), path, {"stream_state": state}, {**rendered, "return_token_ids": True})
    assert undated(answer) == undated(coupled.body)


async def test_the_state_of_a_response_lacks_only_what_repeats_the_request(server: Server) -> None:
    body = streamed({**RESPONSE, "return_derender_state": True})
    coupled = [json.loads(one) for one in payloads(server.post(RESPONSES, body, SAME).body)]
    rendered = render(server, RESPONSES, body)
    answer = await pipe(url(server), RESPONSES, {"stream_state": rendered.pop("derender_state")}, rendered)
    events = [json.loads(one) for one in payloads(answer)]
    for one, other in zip(events, coupled, strict=True):
        if "response" in one:
            one["response"] = {
                **other["response"],
                **{key: one["response"][key] for key in ("id", "output", "usage", "status")},
            }
    assert events == coupled


@pytest.mark.parametrize("name", ["chat", "chat with three choices", "chat with a stop string"])
def test_every_choice_begins_with_its_role_and_says_it_once(server: Server, name: str) -> None:
    """Also where the first token is a marker, which is no text."""
    path, body = REQUESTS[name]
    roles: dict[int, list[str | None]] = {}
    for one in chunks_of(server.post(path, streamed(body), SAME).body):
        for choice in one["choices"]:
            roles.setdefault(choice["index"], []).append(choice["delta"]["role"])
    assert len(roles) == body.get("n", 1)
    for given in roles.values():
        assert given == ["assistant", *[None] * (len(given) - 1)]


def test_a_body_that_is_sent_whole_is_answered_alike(server: Server) -> None:
    for name in ("chat with three choices", "message", "response"):
        path, body = REQUESTS[name]
        body = streamed(body)
        rendered = render(server, path, body)
        stream = engine_stream(server, rendered)
        answer = derender(server, path, context_event(**context_of(path, body, rendered)), stream)
        assert undated(answer.body) == undated(server.post(path, body, SAME).body)


def test_without_any_request_the_text_is_told_as_it_is(server: Server) -> None:
    ids = render(server, COMPLETIONS, {"prompt": "One two"})["token_ids"]
    usage = {
        "request_id": "r",
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16},
    }
    events = [
        context_event(),
        *(data_event(chunk([one])) for one in ids),
        data_event(chunk([], "stop")),
        data_event(usage),
    ]
    *chunks, last = chunks_of(derender(server, COMPLETIONS, *events, DONE).body)
    assert "".join(one["choices"][0]["text"] for one in chunks) == "One two"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["prompt_tokens"] == 7
    assert last["usage"]["completion_tokens"] == len(ids)
    assert chunks_of(derender(server, COMPLETIONS, *events[:-1], DONE).body) != []


# ---------------------------------------------------------------------------------------------- both directions at once


class Wire:
    """A bare connection whose body is sent piece by piece, as chunks of HTTP/1.1."""

    def __init__(self, server: Server, path: str = CHAT) -> None:
        self.socket: socket.socket = server.connect()
        head = f"POST {path}/derender HTTP/1.1\r\nHost: x\r\nContent-Type: text/event-stream\r\n"
        self.socket.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        self.received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def receive_until(self, mark: bytes) -> None:
        while mark not in self.received:
            data = self.socket.recv(65536)
            assert data, self.received
            self.received += data

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture
def texts(server: Server) -> Callable[[str], list[int]]:
    return lambda text: render(server, COMPLETIONS, {"prompt": text})["token_ids"]


def plain_context(prompt_token_ids: Json = (1,), **more: Json) -> bytes:
    request = {"messages": [{"role": "user", "content": "x"}], **more}
    return context_event(chat_request=request, prompt_token_ids=prompt_token_ids)


def test_every_event_is_answered_before_the_next_is_sent(server: Server, texts: Callable[[str], list[int]]) -> None:
    with Wire(server) as wire:
        wire.send(plain_context())
        for word in ("alpha", "beta", "gamma"):
            wire.send(data_event(chunk(texts(word))))
            wire.receive_until(b'"content":"%b"' % word.encode())
        wire.send(data_event(chunk([], "stop")))
        wire.receive_until(b'"finish_reason":"stop"')
        wire.send(DONE)
        wire.receive_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        wire.end()
        # The connection is as good as new.
        wire.socket.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        wire.received = b""
        wire.receive_until(b"HTTP/1.1 200 OK")


def test_a_body_may_come_byte_by_byte(server: Server, texts: Callable[[str], list[int]]) -> None:
    events = [plain_context(), data_event(chunk(texts("Hi 🙂"))), data_event(chunk([], "stop")), DONE]
    whole = derender(server, CHAT, *events).body
    with Wire(server) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"".join(events).replace(b"\n", b"\r\n"):
            wire.send(bytes([byte]))
        wire.receive_until(b"0\r\n\r\n")
        body = wire.received.partition(b"\r\n\r\n")[2]
    unchunked = b"".join(line for line in body.split(b"\r\n")[1::2])
    assert undated(unchunked) == undated(whole)


async def test_after_the_last_stop_string_nobody_reads_on(server: Server) -> None:
    body = streamed(chat_body("a b STOP c d", stop=["STOP"], n=2))
    rendered = render(server, CHAT, body)
    context = context_of(CHAT, body, rendered)
    # An engine that nobody told of the stop string: without an end of its own it would go on for ever.
    rendered["sampling_params"] |= {"max_tokens": 30_000, "ignore_eos": True}
    async with asyncio.timeout(20), piped(url(server), CHAT, context, rendered) as answer:
        text = await answer.read()
    ends = [one["choices"][0] for one in chunks_of(text) if one["choices"][0]["finish_reason"]]
    assert [(end["finish_reason"], end["stop_reason"]) for end in ends] == [("stop", "STOP")] * 2


def test_a_client_that_leaves_frees_its_place(server: Server, texts: Callable[[str], list[int]]) -> None:
    with Wire(server) as wire:
        wire.send(plain_context())
        wire.send(data_event(chunk(texts("alpha"))))
        wire.receive_until(b"alpha")
        assert server.app[LIFECYCLE].in_flight == 1
    server.within(lambda: until(lambda: server.app[LIFECYCLE].in_flight == 0))


def test_a_silent_client_is_given_up(serve: Callable[..., Server], texts: Callable[[str], list[int]]) -> None:
    server = serve(limits={"max_stream_silence": 0.2})
    with Wire(server) as wire:
        wire.receive_until(b"Nothing has arrived for 0.2 seconds")
        assert wire.received.startswith(b"HTTP/1.1 408 ")
    with Wire(server) as wire:
        wire.send(plain_context())
        wire.send(data_event(chunk(texts("alpha"))))
        wire.receive_until(b"alpha")
        wire.receive_until(b'"type":"RequestTimeoutError"')
        wire.receive_until(b"data: [DONE]")


async def test_a_hundred_streams_at_one_time(server: Server) -> None:
    body = streamed(chat_body(**USAGE))
    expected = undated(server.post(CHAT, body, SAME).body)
    rendered = render(server, CHAT, body)
    context = context_of(CHAT, body, rendered)
    answers = await asyncio.gather(*(pipe(url(server), CHAT, context, rendered) for _ in range(100)))
    assert {undated(answer) for answer in answers} == {expected}


def test_nothing_is_kept_of_what_was_said(server: Server, texts: Callable[[str], list[int]]) -> None:
    """A long answer costs the memory of a short one, and its last events the time of its first."""
    stages = server.app[STAGES]
    front = server.within(stages.front)
    answer, reader = StreamedAnswer(stages, front, chat, "chat_request"), EventReader(1 << 20)
    answer.read(reader, plain_context(tools=TOOLS), [])
    answer.read(reader, data_event(chunk(texts('<tool_call>{"name": "add", "arguments": {"a": "'))), [])
    pieces = itertools.cycle(data_event(chunk([one])) for one in texts("lorem ipsum dolor sit amet "))

    def feed(count: int) -> float:
        began = time.process_time()
        for piece in itertools.islice(pieces, count):
            answer.read(reader, piece, [])
        return time.process_time() - began

    feed(1000)
    first = min(feed(200) for _ in range(5))
    tracemalloc.start()
    try:
        feed(200)
        before, _ = tracemalloc.get_traced_memory()
        feed(10_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert min(feed(200) for _ in range(5)) < 2 * first


# ---------------------------------------------------------------------------------------------- what goes wrong


def refusal(server: Server, *events: bytes, path: str = CHAT) -> tuple[int, str | None, str]:
    answer = derender(server, path, *events)
    return answer.status, answer.error["param"], answer.error["message"]


BAD_STREAMS: dict[str, tuple[list[bytes], int, str | None, str]] = {
    "nothing": ([], 400, "body", "ended before"),
    "no context": ([data_event(chunk([5]))], 400, "body.events.0", "must be the context"),
    "a context that is no object": ([b"event: context\ndata: 5\n\n"], 400, "body.events.0", "valid dictionary"),
    "a context that is no JSON": ([b"event: context\ndata: {\n\n"], 400, "body.events.0.1", "JSON decode error"),
    "no request": ([context_event(prompt_token_ids=[1])], 400, "body.chat_request", "chat_request is required"),
    "a bad request": ([context_event(chat_request={})], 400, "body.chat_request.messages", "Field required"),
    "a bad prompt": (
        [plain_context(prompt_token_ids=[-1])],
        400,
        "body.prompt_token_ids.0",
        "greater than",
    ),
    "an unknown model": ([context_event(model="other")], 404, "model", "does not exist"),
    "a bad state": ([context_event(stream_state={"v": 1})], 400, "stream_state", "begin the answer anew"),
    "two contexts": ([plain_context(), plain_context()], 400, "body.events.1", "once"),
    "no JSON": ([plain_context(), data_event(b"{]")], 400, "body.events.1.1", "JSON decode error"),
    "no object": ([plain_context(), data_event([1])], 400, "body.events.1", "valid dictionary"),
    "an unknown id": (
        [plain_context(), data_event(chunk([10**6]))],
        400,
        "body.events.1.choices.0.token_ids.0",
        "vocab",
    ),
    "a negative id": (
        [plain_context(), data_event(chunk([-1]))],
        400,
        "body.events.1.choices.0.token_ids.0",
        "greater",
    ),
    "an unknown prompt id": (
        [plain_context(), data_event(chunk([5], prompt_token_ids=[10**6]))],
        400,
        "body.events.1.prompt_token_ids.0",
        "vocab",
    ),
    "a choice too many": (
        [plain_context(n=2), data_event(chunk([5], index=2))],
        400,
        "body.events.1.choices.0.index",
        "choice 2 is none of the 2",
    ),
    "a negative choice": (
        [plain_context(), data_event(chunk([5], index=-1))],
        400,
        "body.events.1.choices.0.index",
        "",
    ),
    "no answer": ([plain_context(), DONE], 400, "body", "holds no answer"),
    "an end before the beginning": ([plain_context()], 400, "body", "ended before"),
    "an engine's error": (
        [plain_context(), data_event({"error": {"message": "too long", "type": "BadRequestError", "code": 400}})],
        400,
        None,
        "too long",
    ),
    "an engine's odd error": ([plain_context(), data_event({"error": "x"})], 500, None, "The engine failed"),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_what_makes_no_sense_is_an_error_with_its_place(server: Server, name: str) -> None:
    events, status, param, words = BAD_STREAMS[name]
    found_status, found_param, message = refusal(server, *events)
    assert (found_status, found_param) == (status, param)
    assert words in message


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([data_event(b"{]")], "JSON decode error"),
        ([data_event(chunk([10**6]))], "out of vocabulary"),
        ([data_event({"error": {"message": "it broke", "type": "InternalServerError", "code": 500}})], "it broke"),
        ([], "The body ended before the answer did"),
    ],
)
def test_behind_the_first_event_it_is_the_last_one(
    server: Server, texts: Callable[[str], list[int]], bad: list[bytes], said: str
) -> None:
    for path in (CHAT, RESPONSES):
        context = plain_context() if path == CHAT else context_event(responses_request={"input": "x"})
        body = derender(server, path, context, data_event(chunk(texts("alpha"))), *bad).body
        *events, error = [one for one in payloads(body) if one != b"[DONE]"]
        assert b"alpha" in b"".join(events)
        assert said in json.loads(error)["error"]["message"]
        assert body.endswith(b"[DONE]\n\n") == (path == CHAT)
        assert json.loads(error).get("sequence_number") == (len(events) if path == RESPONSES else None)
    context = context_event(
        messages_request={"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    )
    *_, error = payloads(derender(server, MESSAGES, context, data_event(chunk(texts("alpha"))), *bad).body)
    assert json.loads(error)["type"] == "error"
    assert said in json.loads(error)["error"]["message"]


def test_an_engine_without_a_last_word_has_said_enough(server: Server, texts: Callable[[str], list[int]]) -> None:
    events = [plain_context(), data_event(chunk(texts("alpha"))), data_event(chunk([], "stop"))]
    assert undated(derender(server, CHAT, *events).body) == undated(derender(server, CHAT, *events, DONE).body)


def test_events_have_a_limit_and_streams_have_none(serve: Callable[..., Server]) -> None:
    server = serve(limits={"max_body_bytes": 2000})
    long = [data_event(chunk([5])) for _ in range(100)]
    answer = derender(server, CHAT, plain_context(), *long, data_event(chunk([], "stop")), DONE)
    assert len(b"".join(long)) > 2000
    assert len(chunks_of(answer.body)) == 101
    status, _, message = refusal(server, plain_context(), b"data: " + b" " * 3000)
    assert (status, message) == (413, "Event 1 is larger than the limit of 2000 bytes")
    status, _, message = refusal(server, context_event(chat_request={"messages": ["x" * 3000]}))
    assert (status, message) == (413, "Event 0 is larger than the limit of 2000 bytes")


def test_a_choice_is_no_longer_than_the_context(serve: Callable[..., Server]) -> None:
    server = serve(max_model_len=64)
    status, param, message = refusal(server, plain_context(), data_event(chunk([5] * 65)))
    assert (status, param) == (400, "body.events.1.choices.0.token_ids")
    assert "exceeds max_model_len (64)" in message
    events = [data_event(chunk([5] * 60)), data_event(chunk([5] * 4)), data_event(chunk([5]))]
    *_, error, _ = payloads(derender(server, CHAT, plain_context(), *events).body)
    assert json.loads(error)["error"]["param"] == "body.events.3.choices.0.token_ids"


def test_encoded_bodies_are_refused(server: Server) -> None:
    headers = {"Content-Type": "Text/Event-Stream; charset=utf-8", "Content-Encoding": "gzip"}
    answer = server.post(f"{CHAT}/derender", b"x", headers)
    assert answer.status == 400
    assert "Content-Encoding" in answer.error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_other_media_types_are_refused_as_ever(server: Server, path: str) -> None:
    answer = server.post(f"{path}/derender", b"{}", {"Content-Type": "text/plain"})
    assert answer.status == 400


def test_ids_read_from_streams_are_counted(server: Server) -> None:
    def counted() -> float:
        (line,) = [
            one
            for one in server.get("/metrics").body.splitlines()
            if one.startswith(b"scaleout_derendered_tokens_total ")
        ]
        return float(line.split()[1])

    before = counted()
    derender(server, CHAT, plain_context(), data_event(chunk([5, 6, 7])), data_event(chunk([8], "stop")), DONE)
    assert counted() == before + 4
