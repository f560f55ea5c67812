"""What probes, dashboards and people learn about a server, in each of its states."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import anthropic
import openai
import pytest
from aiohttp import web
from serving import Server, read_answer

from scaleout import __version__
from scaleout.config import Mode
from scaleout.routes.keys import LIFECYCLE, STAGES
from scaleout.routes.lifecycle import State

from .conftest import Serve


@pytest.fixture(params=list(Mode))
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


def test_a_server_that_is_ready_says_so(serve: Serve, mode: Mode) -> None:
    server = serve(mode)
    for path in ("/health", "/live", "/ready", "/ping"):
        answer = server.get(path)
        assert (answer.status, answer.body) == (200, b"")
    assert server.post("/ping", b"").status == 200
    assert server.get("/version").json == {"version": __version__}
    assert server.get("/load").json == {"server_load": 0}


def test_head_is_get_without_a_body(serve: Serve) -> None:
    server = serve()
    for path in ("/health", "/live", "/ready", "/ping", "/version", "/load", "/metrics", "/v1/models", "/server_info"):
        answer = server.ask("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")


def in_state(server: Server, state: State) -> None:
    async def put() -> None:
        server.app[LIFECYCLE].state = state

    server.within(put)


async def fine(_: web.Request) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(("state", "healthy"), [(State.LOADING, 503), (State.DRAINING, 200)])
def test_a_server_that_takes_no_work_says_so(serve: Serve, state: State, healthy: int) -> None:
    server = serve(endpoint=fine)
    in_state(server, state)
    assert server.get("/live").status == 200
    assert server.get("/health").status == healthy
    for answer in (server.get("/ready"), server.post("/test", {}), server.get("/v1/models")):
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert ("loading" if state is State.LOADING else "shutting down") in answer.error["message"]
    assert server.get("/metrics").status == 200


def test_a_dead_engine_makes_the_server_ill(serve: Serve) -> None:
    server = serve()
    engine = server.app[STAGES].engine
    assert engine is not None
    server.within(engine.close)
    assert server.get("/live").status == 200
    for path in ("/health", "/ready", "/ping"):
        assert server.get(path).error["message"] == "The engine is dead"
        assert server.get(path).status == 503


def test_model_cards(serve: Serve, mode: Mode, tiny_model: Any) -> None:
    server = serve(mode, max_model_len=1234)
    answer = server.get("/v1/models")
    assert answer.json["object"] == "list"
    assert [card["id"] for card in answer.json["data"]] == ["tiny", "small"]
    for card in answer.json["data"]:
        assert card["object"] == "model"
        assert card["max_model_len"] == 1234
        assert card["root"] == "tiny"
        assert card["parent"] is None
        assert card["permission"][0]["object"] == "model_permission"
    assert str(tiny_model("llama2")).encode() not in answer.body
    assert server.get("/v1/models").body == answer.body


def test_one_model_s_card(serve: Serve, mode: Mode) -> None:
    server = serve(mode, served_model_names=("tiny", "some/small model"))
    for card in server.get("/v1/models").json["data"]:
        assert server.get(f"/v1/models/{quote(card['id'], safe='')}").json == card
    unknown = server.get("/v1/models/large")
    assert unknown.status == 404
    assert unknown.error["message"] == "The model `large` does not exist. Valid aliases: tiny, some/small model."
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        assert client.models.retrieve("some/small model").id == "some/small model"
        assert [model.id for model in client.models.list()] == ["tiny", "some/small model"]
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0) as other:
        assert other.models.retrieve("some/small model").id == "some/small model"
        assert [model.id for model in other.models.list()] == ["tiny", "some/small model"]


def test_server_info_names_the_mode_and_its_routes_and_no_path_of_the_host(
    serve: Serve, mode: Mode, tiny_model: Any
) -> None:
    server = serve(mode)
    answer = server.get("/server_info")
    assert answer.json["mode"] == mode
    assert answer.json["state"] == "ready"
    assert "GET /v1/models" in answer.json["routes"]
    assert str(tiny_model("llama2")).encode() not in answer.body


def test_as_many_requests_work_at_one_time_as_the_limit_allows(serve: Serve) -> None:
    entered, let_go = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        entered.release()
        await let_go.wait()
        return web.Response()

    async def both_are_in() -> None:
        await entered.acquire()
        await entered.acquire()

    async def release() -> None:
        let_go.set()

    server = serve(endpoint=wait, limits={"max_concurrent_work": 2})
    request = b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    with server.connect() as one, server.connect() as two:
        one.sendall(request)
        two.sendall(request)
        server.within(both_are_in)
        assert server.get("/load").json == {"server_load": 2}
        refused = server.post("/test", {})
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "1"
        assert server.get("/health").status == server.get("/ready").status == server.get("/v1/models").status == 200
        server.within(release)
        assert read_answer(one).status == read_answer(two).status == 200
    assert server.get("/load").json == {"server_load": 0}
    assert server.post("/test", {}).status == 200
    assert b"scaleout_requests_refused_total 1.0" in server.get("/metrics").body
