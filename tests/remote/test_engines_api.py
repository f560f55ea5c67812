"""What operators see of engines elsewhere, and what travels to them untouched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from driving import config_of, remote, run_engine
from processes import REPOSITORY, free_port
from serving import Server, serving, until
from wishes import CHAT, talk

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode
from scaleout.routes.keys import STAGES

ECHO = EngineOptions(backend="echo")


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path) -> Iterator[Server]:
    with run_engine("generate", smollm2_folder, ECHO) as server:
        yield server


@pytest.fixture(scope="module")
def front(smollm2_folder: Path, engine: Server) -> Iterator[Server]:
    config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(engine), api_keys=("secret",))
    with serving(make_app(config)) as server:
        yield server


KEY = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/engines"), ("POST", "/engines/x/drain"), ("POST", "/engines/x/resume")]
)
def test_they_need_the_key(front: Server, method: str, path: str) -> None:
    assert front.ask(method, path).status == 401


def test_an_engine_is_drained_and_resumed(front: Server, engine: Server) -> None:
    name = f"127.0.0.1:{engine.port}"
    assert front.post("/engines/nobody/drain", {}, KEY).error["message"].startswith("There is no engine 'nobody'.")
    drained = front.post(f"/engines/{name}/drain", {}, KEY).json
    assert (drained["name"], drained["state"], drained["drained"], drained["in_flight"]) == (name, "up", True, 0)
    refused = front.post(CHAT, {"model": "m", **talk("Hi")}, KEY)
    assert (refused.status, refused.error["message"]) == (503, "All engines are drained.")
    assert front.get("/ready").status == 503
    assert front.post(f"/engines/{name}/resume", {}, KEY).json["drained"] is False
    assert front.post(CHAT, {"model": "m", "max_tokens": 2, **talk("Hi")}, KEY).status == 200
    assert front.get("/ready").status == 200


def test_a_server_with_its_engine_inside_has_no_such_routes(engine: Server) -> None:
    assert "--engine-url" in engine.get("/engines").error["message"]


async def test_a_client_that_leaves_ends_the_work_at_the_engine(front: Server, engine: Server) -> None:
    inner = engine.app[STAGES].engine
    assert inner is not None
    body = json.dumps({"model": "m", "max_tokens": 8000, "stream": True, "ignore_eos": True, **talk("Tell")}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Type: application/json\r\n"
    connection = front.connect()
    connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert b"200 OK" in connection.recv(64)
    assert inner.stats().running == 1
    connection.close()
    await until(lambda: inner.stats().running == 0)
    assert inner.stats().generated_tokens < 8000


def recording(bodies: list[Any]) -> web.Application:
    """A server with a generate route that keeps what it is sent."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        if not body:
            return web.json_response({"error": {"message": "token_ids"}}, status=400)
        bodies.append((body, dict(request.headers)))
        choice = {"index": 0, "token_ids": [1], "finish_reason": "stop", "stop_reason": None, "logprobs": None}
        return web.json_response({"request_id": "r", "choices": [choice], "usage": {"prompt_tokens": 1}})

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    app.router.add_get("/health", health)
    return app


def test_parameters_and_trace_context_travel_untouched(smollm2_folder: Path) -> None:
    """Over a balancer of token ids, whose requests are the wire's own."""
    bodies: list[Any] = []
    with serving(recording(bodies)) as engine:
        config = config_of(Mode.TOKENS_ONLY, smollm2_folder, engine=remote(engine))
        with serving(make_app(config)) as balancer:
            params = {"max_tokens": 3, "seed": 5, "logit_bias": {"7": 1.5}, "bad_words": ["x"], "min_tokens": 1}
            params["structured_outputs"] = {"json": {"type": "object"}}
            body = {
                "request_id": "mine",
                "token_ids": [5, 6],
                "sampling_params": params,
                "cache_salt": "salt",
                "priority": 3,
                "kv_transfer_params": {"do_remote_decode": True},
            }
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            answer = balancer.post("/inference/v1/generate", body, {"traceparent": trace})
            assert answer.status == 200, answer.body
    ((sent, headers),) = bodies
    for name, value in params.items():
        assert sent["sampling_params"][name] == value
    assert (sent["token_ids"], sent["cache_salt"], sent["priority"]) == ([5, 6], "salt", 3)
    assert sent["kv_transfer_params"] == {"do_remote_decode": True}
    assert sent["request_id"].startswith("mine-")
    assert headers["traceparent"].split("-")[1] == trace.split("-")[1]
    assert sent["stream"] is False  # the peer's streams lack transfer parameters


def test_all_workers_drain_together(smollm2_folder: Path, engine: Server) -> None:
    """Each connection may reach another process; what one is told holds for all."""
    port, name = free_port(), f"127.0.0.1:{engine.port}"
    command = [sys.executable, "-m", "scaleout", "launch", "render", str(smollm2_folder), "--port", str(port)]
    command += ["--workers", "3", "--engine-url", f"http://{name}", "--served-model-name", "m", "--no-access-log"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, start_new_session=True)
    try:
        server = Server(web.Application(), port, asyncio.new_event_loop())
        wait_for(lambda: server.get("/ready").status == 200)
        server.post(f"/engines/{name}/drain", {})
        chat = {"model": "m", "max_tokens": 2, **talk("Hi")}
        assert [server.post(CHAT, chat).status for _ in range(12)] == [503] * 12
        assert all(server.get("/engines").json["engines"][0]["drained"] for _ in range(6))
        server.post(f"/engines/{name}/resume", {})
        assert [server.post(CHAT, chat).status for _ in range(12)] == [200] * 12
        server.loop.close()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except (TimeoutError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError("the server does not start")


def test_workers_refuse_to_start_with_another_model(smollm2_folder: Path, engine: Server) -> None:
    command = [sys.executable, "-m", "scaleout", "launch", "render", str(smollm2_folder), "--port", str(free_port())]
    command += ["--workers", "2", "--engine-url", f"http://127.0.0.1:{engine.port}", "--engine-model", "another"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"scaleout: engine 127.0.0.1:{engine.port}: model name: it serves 'm', not 'another'" in done.stderr
