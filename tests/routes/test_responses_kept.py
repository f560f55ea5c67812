"""Responses after they were answered: asked for again, gone on from, cancelled, forgotten; and what is bounded in that."""

from __future__ import annotations

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
from scaleout.pipeline.response_store import ResponseStore, Stored, open_store, read_turns, write_turn
from scaleout.routes.keys import LIFECYCLE, RESPONSES, STAGES

PATH = "/v1/responses"
ECHO_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% endfor %}"
FOR_EVER = {"max_output_tokens": 100_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def serve(tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Server]]:
    """A server whose prompt is the conversation, role by role, and whose engine says the prompt again."""
    with ExitStack() as running:

        def start(*, limits: dict[str, Any] | None = None, **settings: Any) -> Server:
            config = ModeConfig(
                settings.pop("mode", Mode.STANDARD),
                model=str(tiny_model("qwen3")),
                chat_template=ECHO_TEMPLATE,
                served_model_names=("m",),
                access_log=False,
                tool_call_parser="hermes",
                limits=Limits(**(limits or {})),
                engine=EngineOptions(backend="echo", args={"eos_after_prompt": True}),
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
    assert refused(server.get(f"{PATH}/{last['id']}?stream=true"), 400, "stream")


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
    until = time.monotonic() + 20
    while engine.stats().running or server.app[LIFECYCLE].in_flight:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_background_that_fails_says_so(serve: Callable[..., Server]) -> None:
    server = serve(max_model_len=64)
    engine = server.app[STAGES].engine
    assert engine is not None
    running = ask(server, "x", background=True, max_output_tokens=40, ignore_eos=True)
    wait_for(server, running["id"], "completed", "incomplete")
    server.within(engine.close)
    answer = server.post(PATH, {"model": "m", "input": "x", "background": True})
    assert answer.status == 503


@pytest.mark.parametrize(("fields", "param"), [({"stream": True}, "stream"), ({"store": False}, "background")])
def test_background_needs_somewhere_to_be_found(server: Server, fields: dict[str, Any], param: str) -> None:
    refused(server.post(PATH, {"model": "m", "input": "x", "background": True, **fields}), 400, param)


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
    return Stored(b"x" * size, (b"[]",))


def test_the_one_used_longest_ago_goes_first() -> None:
    store = ResponseStore(max_count=2, max_bytes=1000)
    assert store.put("", "a", one())
    assert store.put("", "b", one())
    store.find("", "a")
    assert store.put("", "c", one())
    assert [name for name in "abc" if store.drop("", name)] == ["a", "c"]
    assert store.bytes == 0


def test_bytes_are_bounded_and_counted_exactly() -> None:
    store = ResponseStore(max_count=100, max_bytes=100)
    for i in range(50):
        assert store.put("", f"{i % 7}", one(i))
        assert store.bytes <= 100
    assert store.put("", "small", one(3))
    assert not store.put("", "large", one(99))
    assert len(store)


async def test_what_is_being_made_is_not_dropped_for_others() -> None:
    import asyncio

    store = ResponseStore(max_count=2, max_bytes=1000)
    works = [asyncio.create_task(asyncio.sleep(60)) for _ in range(2)]
    for i, work in enumerate(works):
        store.put("", f"{i}", Stored(b'{"status":"in_progress"}', (), work))
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
    turns = (write_turn([{"n": 1}], []), write_turn("hi", [text, whole, cut]))
    assert read_turns(turns) == [{"n": 1}, {"type": "message", "role": "user", "content": "hi"}, text, whole]


def test_a_conversation_that_goes_on_shares_the_turns_before(server: Server) -> None:
    long = ask(server, "word " * 60_000, max_output_tokens=16)
    second = ask(server, "and", previous_response_id=long["id"], max_output_tokens=16)
    store = server.app[RESPONSES]
    before, after = (store.conversation("", one["id"]) for one in (long, second))
    assert after[0] is before[0]
    assert (len(before), len(after)) == (1, 2)
    assert len(before[0]) > 300_000
    assert len(after[1]) < 1000
