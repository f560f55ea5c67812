"""Responses after they were answered: asked for again, gone on from, cancelled, forgotten; and what is bounded in that."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import Answer, Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Limits, Mode, ModeConfig
from scaleout.core import Json
from scaleout.errors import BadRequest, NotFound, Overloaded
from scaleout.pipeline.response_store import ResponseStore, Stored, open_store, read_turns, write_asked, write_said
from scaleout.pipeline.tape import Tape
from scaleout.routes.keys import LIFECYCLE, RESPONSES, STAGES

from .halting import Halting

PATH = "/v1/responses"
ECHO_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% endfor %}"
FOR_EVER = {"max_output_tokens": 100_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def serve(tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Server]]:
    """A server whose prompt is the conversation, role by role, and whose engine says the prompt again."""
    with ExitStack() as running:

        def start(*, limits: dict[str, Any] | None = None, ends: bool = True, **settings: Any) -> Server:
            config = ModeConfig(
                settings.pop("mode", Mode.STANDARD),
                model=str(tiny_model("qwen3")),
                chat_template=ECHO_TEMPLATE,
                served_model_names=("m",),
                access_log=False,
                tool_call_parser="hermes",
                limits=Limits(**(limits or {})),
                engine=EngineOptions(backend="echo", args={"eos_after_prompt": ends}),
                **settings,
            )
            return running.enter_context(serving(make_app(config)))

        yield start


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve()


def ask(server: Server, given: Json, **fields: Any) -> Any:
    answer = server.post(PATH, {"model": "m", "input": given, "max_output_tokens": 200, **fields})
    assert answer.status == 200, answer.body
    return answer.json


def said(response: Any) -> str:
    return "".join(p["text"] for item in response["output"] if item["type"] == "message" for p in item["content"])


def refused(answer: Answer, status: int, param: str) -> str:
    assert answer.status == status
    assert answer.error["param"] == param
    message: str = answer.error["message"]
    return message


def wait_for(server: Server, response_id: str, *ends: str) -> Any:
    """Ask until the response is done, as clients do."""
    until = time.monotonic() + 20
    while (response := server.get(f"{PATH}/{response_id}").json)["status"] not in ends:
        assert time.monotonic() < until, response["status"]
        time.sleep(0.01)
    return response


# ---------------------------------------------------------------------------------------------- over HTTP


def test_a_response_can_be_asked_for_again(server: Server) -> None:
    response = ask(server, "one")
    assert response["store"] is True
    assert server.get(f"{PATH}/{response['id']}").json == response
    streamed = server.post(PATH, {"model": "m", "input": "two", "stream": True})
    last = json.loads(streamed.body.decode().rstrip().rpartition("data: ")[2])["response"]
    assert server.get(f"{PATH}/{last['id']}").json == last
    message = refused(server.get(f"{PATH}/{last['id']}?stream=true"), 400, "stream")
    assert message == "Only a response that was made with background and stream can be streamed again"


def test_a_conversation_goes_on_from_it(server: Server) -> None:
    first = ask(server, "one", instructions="Be brief.")
    second = ask(server, [{"role": "user", "content": "two"}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert said(second) == f"[user]one[assistant]{said(first)}[user]two"  # instructions do not come along
    third = ask(server, "three", previous_response_id=second["id"], instructions="Go.")
    assert said(third) == f"[system]Go.[user]one[assistant]{said(first)}[user]two[assistant]{said(second)}[user]three"


def test_a_tool_loop_goes_on_from_the_call(server: Server) -> None:
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
    first = ask(server, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', tools=tools)
    call = next(item for item in first["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    second = ask(server, [output], previous_response_id=first["id"])
    assert said(second).endswith("[tool]3")


@pytest.mark.parametrize("stream", [False, True])
def test_what_shall_not_be_stored_is_not(server: Server, stream: bool) -> None:
    answer = server.post(PATH, {"model": "m", "input": "x", "store": False, "stream": stream, "request_id": "resp_1"})
    assert answer.status == 200
    message = refused(server.get(f"{PATH}/resp_1"), 404, "response_id")
    assert message == "Response with id 'resp_1' not found."
    assert server.get(f"{PATH}/resp_1").error["type"] == "invalid_request_error"
    going_on = server.post(PATH, {"model": "m", "input": "y", "previous_response_id": "resp_1"})
    assert refused(going_on, 404, "previous_response_id") == message
    assert all(response_id != "resp_1" for _, response_id in server.app[RESPONSES]._stored)


def test_a_response_can_be_forgotten(server: Server) -> None:
    path = f"{PATH}/{ask(server, 'x')['id']}"
    assert server.ask("DELETE", path).json == {"id": path.rpartition("/")[2], "object": "response", "deleted": True}
    for answer in (server.get(path), server.ask("DELETE", path), server.post(f"{path}/cancel", None)):
        refused(answer, 404, "response_id")


def test_one_that_was_answered_at_once_cannot_be_cancelled(server: Server) -> None:
    answer = server.post(f"{PATH}/{ask(server, 'x')['id']}/cancel", None)
    assert refused(answer, 400, "response_id") == "Cannot cancel a synchronous response."


def test_in_the_background(server: Server) -> None:
    queued = ask(server, "one", background=True)
    assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
    done = wait_for(server, queued["id"], "completed")
    assert said(done) == "[user]one"
    assert said(ask(server, "two", previous_response_id=done["id"])).startswith("[user]one")
    assert server.post(f"{PATH}/{done['id']}/cancel", None).json == done


def test_cancelling_stops_the_engine(server: Server) -> None:
    engine = server.app[STAGES].engine
    assert engine is not None
    running = ask(server, "one", background=True, **FOR_EVER)
    assert server.get(f"{PATH}/{running['id']}").json["status"] == "in_progress"
    too_early = server.post(PATH, {"model": "m", "input": "x", "previous_response_id": running["id"]})
    assert "in_progress" in refused(too_early, 400, "previous_response_id")
    cancelled = server.post(f"{PATH}/{running['id']}/cancel", None).json
    assert cancelled["status"] == "cancelled"
    assert server.get(f"{PATH}/{running['id']}").json == cancelled
    wait_until_idle(server)


def test_background_that_fails_says_so(serve: Callable[..., Server]) -> None:
    server = serve(max_model_len=64)
    engine = server.app[STAGES].engine
    assert engine is not None
    running = ask(server, "x", background=True, max_output_tokens=40, ignore_eos=True)
    wait_for(server, running["id"], "completed", "incomplete")
    server.within(engine.close)
    answer = server.post(PATH, {"model": "m", "input": "x", "background": True})
    assert answer.status == 503


def events(answer: Answer) -> list[Any]:
    """A stream of named events, each under its own name, numbered without a gap."""
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for block in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    first = found[0]["sequence_number"]
    assert [event["sequence_number"] for event in found] == list(range(first, first + len(found)))
    return found


def test_a_stream_in_the_background_can_be_taken_up_again(server: Server) -> None:
    body = {"model": "m", "input": "one two three", "stream": True, "max_output_tokens": 200}
    plain = events(server.post(PATH, body))
    whole = events(server.post(PATH, {**body, "background": True}))
    assert [event["type"] for event in whole] == [event["type"] for event in plain]
    assert [event.get("delta") for event in whole] == [event.get("delta") for event in plain]
    done = whole[-1]["response"]
    assert (done["status"], done["background"], said(done)) == ("completed", True, "[user]one two three")
    path = f"{PATH}/{done['id']}"
    assert server.get(path).json == done
    assert events(server.get(f"{path}?stream=true")) == whole
    assert events(server.get(f"{path}?stream=true&starting_after=3")) == whole[4:]
    assert events(server.get(f"{path}?stream=true&starting_after={len(whole) - 2}")) == whole[-1:]
    assert server.get(f"{path}?stream=true&starting_after={len(whole) - 1}").body == b""
    assert said(ask(server, "four", previous_response_id=done["id"])).startswith("[user]one two three")


@pytest.mark.parametrize("number", ["x", "-2", "1.5", "9" * 30, ""])
def test_where_to_take_it_up_is_a_number(server: Server, number: str) -> None:
    done = events(server.post(PATH, {"model": "m", "input": "x", "stream": True, "background": True}))[-1]["response"]
    refused(server.get(f"{PATH}/{done['id']}?stream=true&starting_after={number}"), 400, "starting_after")


def test_a_client_that_leaves_comes_back_to_the_stream(serve: Callable[..., Server]) -> None:
    """The work goes on without a reader; several may follow it, from anywhere; cancelling ends it for all."""
    server = serve()
    engine = Halting(server.app[STAGES].engine, says=10)
    server.app[STAGES].engine = engine  # type: ignore[assignment]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        with client.responses.create(model="m", input="one two", background=True, stream=True) as stream:
            first = [next(stream) for _ in range(8)]
        assert isinstance(first[0], openai.types.responses.ResponseCreatedEvent)
        response_id = first[0].response.id
        with client.responses.retrieve(response_id, stream=True, starting_after=3) as again:
            assert [next(again) for _ in range(4)] == first[4:]
            assert engine.left == 0
            assert client.responses.retrieve(response_id).status == "in_progress"
            assert client.responses.cancel(response_id).status == "cancelled"
            *_, last = again
        assert isinstance(last, openai.types.responses.ResponseIncompleteEvent)
        assert last.response.status == "cancelled"
        assert client.responses.retrieve(response_id).status == "cancelled"
        assert events(server.get(f"{PATH}/{response_id}?stream=true"))[-1] == last.to_dict()
    wait_until_idle(server)
    assert (engine.asked, engine.left) == (1, 1)


def test_a_stream_in_the_background_that_fails_says_so(serve: Callable[..., Server]) -> None:
    server = serve(limits={"max_stored_bytes": 20_000}, ends=False)
    body = {"model": "m", "input": "x", "background": True, "stream": True, **FOR_EVER}
    told = events(server.post(PATH, body))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert (told[-1]["type"], told[-1]["response"]["status"]) == ("response.failed", "failed")
    assert told[-1]["response"]["error"]["message"] == "Too many responses are being made in the background"
    wait_until_idle(server)
    assert server.app[RESPONSES].taken <= 20_000


def wait_until_idle(server: Server) -> None:
    engine = server.app[STAGES].engine
    assert engine is not None
    until = time.monotonic() + 20
    while engine.stats().running or server.app[LIFECYCLE].in_flight:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_background_needs_somewhere_to_be_found(server: Server) -> None:
    refused(server.post(PATH, {"model": "m", "input": "x", "background": True, "store": False}), 400, "background")


def test_what_a_response_answers_is_listed(server: Server) -> None:
    first = ask(server, "one")
    asked = [
        {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
        {"role": "assistant", "content": "2"},
    ]
    second = ask(server, [*asked, {"role": "user", "content": "three"}], previous_response_id=first["id"])
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        for limit in (1, 2, 100):
            items: list[Any] = list(client.responses.input_items.list(second["id"], order="asc", limit=limit))
            assert [item.role for item in items] == ["user", "assistant", "user", "assistant", "user"]
            assert [item.content[0].text for item in items] == ["one", said(first), "two", "2", "three"]
            assert [item.content[0].type for item in items][::3] == ["input_text", "output_text"]
            assert items[1].id == first["output"][0]["id"]
            assert len({item.id for item in items}) == 5
        newest = client.responses.input_items.list(second["id"])
        assert [item.id for item in newest.data] == [item.id for item in reversed(items)]
    page = server.get(f"{PATH}/{second['id']}/input_items?limit=2").json
    assert (page["object"], page["has_more"]) == ("list", True)
    assert [page["first_id"], page["last_id"]] == [item["id"] for item in page["data"]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=msg_1", "after"),
    ],
)
def test_a_page_that_is_none_is_refused(server: Server, query: str, param: str) -> None:
    refused(server.get(f"{PATH}/{ask(server, 'x')['id']}/input_items?{query}"), 400, param)
    refused(server.get(f"{PATH}/resp_unknown/input_items"), 404, "response_id")


def test_what_runs_in_the_background_can_be_listed_too(server: Server) -> None:
    running = ask(server, "one", background=True, **FOR_EVER)
    path = f"{PATH}/{running['id']}"
    listed = server.get(f"{path}/input_items").json["data"]
    assert [item["content"][0]["text"] for item in listed] == ["one"]
    server.post(f"{path}/cancel", None)
    assert server.get(f"{path}/input_items").json["data"] == listed


def test_a_server_that_keeps_nothing_says_why(serve: Callable[..., Server]) -> None:
    server = serve(limits={"max_stored_responses": 0})
    response = ask(server, "x")
    assert response["store"] is False
    assert "--max-stored-responses is 0" in refused(server.get(f"{PATH}/{response['id']}"), 404, "response_id")
    background = server.post(PATH, {"model": "m", "input": "x", "background": True})
    assert "--max-stored-responses is 0" in refused(background, 400, "background")
    several = open_store(ModeConfig(Mode.RENDER_ONLY, model="m", workers=4))
    with pytest.raises(NotFound, match=r"4 processes.*--workers 1"):
        several.conversation("", "resp_1")


def test_what_one_key_stored_no_other_finds(serve: Callable[..., Server]) -> None:
    server = serve(api_keys=("alpha", "beta"))
    alpha, beta = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
    mine = server.post(PATH, {"model": "m", "input": "secret", "request_id": "resp_1"}, alpha)
    assert mine.status == 200
    refused(server.get(f"{PATH}/resp_1", beta), 404, "response_id")
    refused(server.ask("DELETE", f"{PATH}/resp_1", None, beta), 404, "response_id")
    theirs = server.post(PATH, {"model": "m", "input": "other", "request_id": "resp_1"}, beta)
    assert theirs.status == 200
    assert server.get(f"{PATH}/resp_1", {"x-api-key": "alpha"}).json == mine.json
    assert server.get(f"{PATH}/resp_1").status == 401


@pytest.mark.parametrize("previous", [5, {"a": 1}, [], True])
def test_an_id_that_is_none_is_refused(server: Server, previous: Json) -> None:
    answer = server.post(PATH, {"model": "m", "input": "x", "previous_response_id": previous})
    refused(answer, 400, "body.previous_response_id")


def test_a_conversation_of_another_kind_is_refused(server: Server) -> None:
    answer = server.post(PATH, {"model": "m", "input": "x", "conversation": {"id": "conv_1"}})
    assert "previous_response_id" in refused(answer, 400, "conversation")


def test_the_official_client_uses_all_of_it(server: Server) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(model="m", input="one", background=True, max_output_tokens=200)
        while first.status in ("queued", "in_progress"):
            first = client.responses.retrieve(first.id)
        second = client.responses.create(model="m", input="two", previous_response_id=first.id)
        assert second.output_text == f"[user]one[assistant]{first.output_text}[user]two"
        assert client.responses.cancel(first.id).status == "completed"
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.responses.retrieve(first.id)


# ---------------------------------------------------------------------------------------------- the bounds


def one(size: int = 10) -> Stored:
    return Stored(b"x" * size, (b"[]",), b"")


def test_the_one_used_longest_ago_goes_first() -> None:
    store = ResponseStore(max_count=2, max_bytes=1000)
    assert store.put("", "a", one())
    assert store.put("", "b", one())
    store.find("", "a")
    assert store.put("", "c", one())
    assert [name for name in "abc" if store.drop("", name)] == ["a", "c"]
    assert store.taken == 0


def test_bytes_are_bounded_and_counted_exactly() -> None:
    store = ResponseStore(max_count=100, max_bytes=100)
    for i in range(50):
        assert store.put("", f"{i % 7}", one(i))
        assert store.taken <= 100
    assert store.put("", "small", one(3))
    assert not store.put("", "large", one(99))
    assert len(store)


async def test_what_is_being_made_is_not_dropped_for_others() -> None:
    store = ResponseStore(max_count=2, max_bytes=1000)
    works = [asyncio.create_task(asyncio.sleep(60)) for _ in range(2)]
    for i, work in enumerate(works):
        store.put("", f"{i}", Stored(b'{"status":"in_progress"}', work=work))
    with pytest.raises(Overloaded):
        store.put("", "new", one())
    with pytest.raises(BadRequest, match="in_progress"):
        store.conversation("", "0")
    await store.close()
    assert all(work.cancelled() for work in works)


def test_a_call_that_was_cut_does_not_go_on() -> None:
    cut = {"type": "function_call", "status": "incomplete", "arguments": '{"a"'}
    whole = {"type": "function_call", "status": "completed", "arguments": "{}"}
    text = {"type": "message", "status": "incomplete"}
    turns = (write_asked([{"n": 1}]), write_said([]), write_asked("hi"), write_said([text, whole, cut]))
    assert read_turns(turns) == [{"n": 1}, {"type": "message", "role": "user", "content": "hi"}, text, whole]


def test_a_conversation_that_goes_on_shares_the_turns_before(server: Server) -> None:
    long = ask(server, "word " * 60_000, max_output_tokens=16)
    second = ask(server, "and", previous_response_id=long["id"], max_output_tokens=16)
    store = server.app[RESPONSES]
    before, after = (store.conversation("", one["id"]) for one in (long, second))
    assert all(one is another for one, another in zip(before, after, strict=False))
    assert (len(before), len(after)) == (2, 4)
    assert len(before[0]) > 300_000
    assert len(after[2]) + len(after[3]) < 1000


async def test_a_tape_counts_as_it_grows() -> None:
    store = ResponseStore(max_count=10, max_bytes=100)
    tape = Tape()
    work = asyncio.create_task(asyncio.sleep(60))
    running = Stored(b"x" * 10, work=work, tape=tape)
    store.put("", "idle", Stored(b"x" * 50))
    store.put("", "running", running)
    for _ in range(4):
        store.record(running, b"y" * 20)
    assert (store.taken, len(store)) == (90, 1)  # what was idle is gone
    with pytest.raises(Overloaded):
        store.record(running, b"y" * 20)
    assert store.drop("", "running")
    assert store.taken == 0
    await asyncio.gather(work, return_exceptions=True)


async def test_whoever_follows_a_tape_gets_all_of_it() -> None:
    tape = Tape()

    async def read(start: int) -> bytes:
        return b"".join([piece async for piece in tape.follow(start)])

    readers = [asyncio.create_task(read(start)) for start in (0, 2, 9)]
    for number in b"01234":
        tape.add(bytes([number]))
        if number % 2:
            await asyncio.sleep(0)
    readers.append(asyncio.create_task(read(1)))
    await asyncio.sleep(0)
    tape.add(b"5")
    tape.end()
    assert await asyncio.gather(*readers) == [b"012345", b"2345", b"", b"12345"]
    assert await read(4) == b"45"
