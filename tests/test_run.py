"""A server as a process: its address, its states from start to exit, and what signals do to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import define
from serving import Answer, read_answer

STREAM = {"token_ids": [5, 6, 7], "stream": True, "sampling_params": {"max_tokens": 1_000_000, "logprobs": 20}}


@define
class Process:
    """A started `scaleout` command; everything it says goes to `log`."""

    popen: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def await_log(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.said())) is None:
            assert self.popen.poll() is None, f"it ended with {self.popen.returncode}:\n{self.said()}"
            assert time.monotonic() < deadline, f"it never said {pattern!r}:\n{self.said()}"
            time.sleep(0.02)
        return found

    @property
    def port(self) -> int:
        return int(self.await_log(r" on http://\S+:(\d+)")[1])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        with self.connect() as connection:
            connection.sendall(request_bytes(method, path, body))
            return read_answer(connection)

    def await_ready(self) -> None:
        self.await_log(r"ready after")
        assert self.ask("GET", "/ready").status == 200

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(60)


def request_bytes(method: str, path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def open_stream(process: Process) -> tuple[socket.socket, http.client.HTTPResponse]:
    """A stream that has begun; the engine goes on for as long as it is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", process.port))
    connection.sendall(request_bytes("POST", "/inference/v1/generate", STREAM))
    response = http.client.HTTPResponse(connection)
    response.begin()
    assert response.status == 200
    assert response.readline().startswith(b"data: {")
    return connection, response


def read_events(response: http.client.HTTPResponse) -> list[bytes]:
    return [line for line in iter(response.readline, b"") if line != b"\n"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`start(*words)`: a running `scaleout WORDS`. What still runs afterwards is killed."""
    with ExitStack() as started:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SCALEOUT_", "VLLM_"))}

        def run(*words: str | Path) -> Process:
            log = tmp_path / f"log{time.monotonic_ns()}"
            command = [sys.executable, "-m", "scaleout", *map(str, words)]
            with log.open("wb") as out:
                popen = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            started.callback(popen.wait)
            started.callback(popen.kill)
            return Process(popen, log)

        yield run


@pytest.fixture
def serve_workers(start: Callable[..., Process], tiny_model: Callable[..., Path]) -> Callable[..., Process]:
    """`serve_workers(n)`: a render-only server of n processes that are all ready."""

    def run(count: int) -> Process:
        model = tiny_model("llama2")
        process = start("launch", "render", model, "--host", "127.0.0.1", "--port", "0", "--workers", str(count))
        process.await_log("(?s)" + ".*".join(["ready after"] * count))
        return process

    return run


@pytest.fixture
def serve_echo(start: Callable[..., Process], tiny_model: Callable[..., Path]) -> Callable[..., Process]:
    def run(*words: str) -> Process:
        model = tiny_model("llama2")
        context = "--max-model-len", "2000000"
        where = () if "--uds" in words else ("--host", "127.0.0.1", "--port", "0")
        return start("serve", model, "--tokens-only", "--engine-backend", "echo", *context, *where, *words)

    return run


def test_a_server_that_still_checks_its_parts_ends_well(
    start: Callable[..., Process], tiny_model: Callable[..., Path]
) -> None:
    process = start("launch", "render", tiny_model("qwen3"), "--host", "127.0.0.1", "--port", "0", "--workers", "1")
    process.await_ready()
    assert "Tokenizer backend" not in process.said()  # what the check says at its end
    assert process.end() == 0
    assert "FATAL" not in process.said()


def test_a_signal_lets_running_streams_finish_and_refuses_new_work(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo("--shutdown-timeout", "60")
    process.await_ready()
    connection, response = open_stream(process)
    with connection, process.connect() as kept:
        process.popen.send_signal(signal.SIGTERM)
        process.await_log("shutting down: 1 requests")
        kept.sendall(request_bytes("GET", "/ready"))
        assert read_answer(kept).status == 503
        for method, path, body in (
            ("GET", "/ready", None),
            ("POST", "/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 1}}),
        ):
            refused = process.ask(method, path, body)
            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) > 0
        assert process.ask("GET", "/health").status == process.ask("GET", "/live").status == 200
        assert process.popen.poll() is None
        events = [response.readline() for _ in range(200)]
        assert sum(event.startswith(b"data: {") for event in events) == 100
        answer = process.ask("POST", "/inference/v1/abort_requests", {"request_ids": [request_id(events)]})
        assert answer.status == 200
        rest = read_events(response)
        assert rest[-1] == b"data: [DONE]\n"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "abort"
        assert process.popen.wait(30) == 0


def request_id(events: list[bytes]) -> str:
    return str(next(json.loads(event[6:])["request_id"] for event in events if event.startswith(b"data: {")))


def test_when_the_grace_period_is_over_streams_end_as_aborted(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo("--shutdown-timeout", "0.2")
    process.await_ready()
    connection, response = open_stream(process)
    with connection:
        process.popen.send_signal(signal.SIGTERM)
        rest = read_events(response)
        assert rest[-1] == b"data: [DONE]\n"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "abort"
    assert process.popen.wait(30) == 0
    assert "1 requests did not finish in time" in process.said()


def test_a_client_that_reads_nothing_cannot_keep_a_server_alive(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo("--shutdown-timeout", "0.2")
    process.await_ready()
    connection, _ = open_stream(process)
    with connection:
        assert process.end() == 0


def test_a_second_signal_ends_it_at_once(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo("--shutdown-timeout", "600")
    process.await_ready()
    connection, _ = open_stream(process)
    with connection:
        process.popen.send_signal(signal.SIGTERM)
        process.await_log("shutting down: 1 requests")
        assert process.end() == 128 + signal.SIGTERM


def test_an_idle_server_ends_cleanly_on_ctrl_c(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo()
    process.await_ready()
    assert process.end(signal.SIGINT) == 0
    assert "Traceback" not in process.said()


def test_bytes_that_are_no_http_fill_no_log(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo()
    process.await_ready()
    for junk in (
        b"\x16\x03\x01\x02\x00\x01",
        b"BREW /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 50_000,
    ):
        with process.connect() as connection:
            connection.sendall(junk + b"\r\n\r\n")
            assert read_answer(connection).status == 400
    assert process.end() == 0
    assert "Traceback" not in process.said()


def test_a_server_answers_probes_while_it_loads_and_can_be_ended_then(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    os.mkfifo(model / "config.json")
    process = start("launch", "render", model, "--workers", "1", "--host", "127.0.0.1", "--port", "0")
    assert process.ask("GET", "/live").status == 200
    assert process.ask("GET", "/version").status == 200
    for path in ("/health", "/ready", "/v1/models"):
        answer = process.ask("GET", path)
        assert answer.status == 503
        assert "loading" in answer.error["message"]
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 10


def test_a_model_that_is_none_is_refused_with_one_message(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start("launch", "render", tmp_path, "--workers", "1", "--host", "127.0.0.1", "--port", "0")
    assert process.popen.wait(60) == 2
    assert "Traceback" not in process.said()
    assert "scaleout: " in process.said()


def test_a_taken_port_is_refused_before_anything_is_loaded(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        process = start("launch", "render", tmp_path, "--workers", "1", "--host", "127.0.0.1", "--port", port)
        assert process.popen.wait(60) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in process.said()
    assert "loading" not in process.said()


def test_a_unix_socket_serves_and_is_taken_away_at_the_end(serve_echo: Callable[..., Process], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    process = serve_echo("--uds", path)
    process.await_log("ready after")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(request_bytes("GET", "/health"))
        assert read_answer(connection).status == 200
    second = serve_echo("--uds", path)
    assert second.popen.wait(60) == 2
    assert f"cannot listen on {path}" in second.said()
    assert Path(path).exists()
    assert process.end() == 0
    assert not Path(path).exists()


def test_all_interfaces_means_both_kinds_of_address(serve_echo: Callable[..., Process]) -> None:
    process = serve_echo("--host", "")
    process.await_ready()
    if socket.has_dualstack_ipv6():
        with socket.create_connection(("::1", process.port), timeout=30) as connection:
            connection.sendall(request_bytes("GET", "/health"))
            assert read_answer(connection).status == 200
    assert process.end() == 0


# ---------------------------------------------------------------------------------------------- several processes


def workers_of(process: Process) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.popen.pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def counted(process: Process, line: str) -> float:
    """A sample of /metrics."""
    found = re.search(rf"^{re.escape(line)} (\S+)$", process.ask("GET", "/metrics").body.decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_workers_share_the_port_and_tell_the_same_sums(serve_workers: Callable[..., Process]) -> None:
    process = serve_workers(2)
    assert len(workers_of(process)) == 2
    for _ in range(40):
        assert process.ask("POST", "/tokenize", {"prompt": "hello"}).status == 200
    line = 'scaleout_requests_total{method="POST",route="/tokenize",status="200"}'
    assert [counted(process, line) for _ in range(10)] == [40.0] * 10
    assert counted(process, "scaleout_requests_in_flight") == 0
    busy = [worker.cpu_times().user for worker in workers_of(process)]
    assert min(busy) > 0
    children = workers_of(process)
    assert process.end() == 0
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_worker_that_dies_is_replaced(serve_workers: Callable[..., Process]) -> None:
    process = serve_workers(2)
    dead, kept = workers_of(process)
    dead.kill()
    process.await_log("(?s)is replaced.*ready after")
    assert kept in workers_of(process)
    assert len(workers_of(process)) == 2
    for _ in range(20):
        assert process.ask("GET", "/ready").status == 200
    assert process.end(signal.SIGINT) == 0


def test_workers_do_not_outlive_a_parent_that_is_killed(serve_workers: Callable[..., Process]) -> None:
    process = serve_workers(2)
    children = workers_of(process)
    process.popen.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_a_second_signal_kills_all_workers(serve_workers: Callable[..., Process]) -> None:
    process = serve_workers(2)
    children = workers_of(process)
    with process.connect() as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        while counted(process, "scaleout_requests_in_flight") < 1:
            time.sleep(0.02)
        process.popen.send_signal(signal.SIGTERM)
        process.await_log("shutting down: 1 requests")
        assert process.end() == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_what_no_worker_can_start_with_is_said_once(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start("launch", "render", tmp_path, "--workers", "3", "--host", "127.0.0.1", "--port", "0")
    assert process.popen.wait(60) == 2
    assert process.said().count("scaleout: ") == 1
    assert "Traceback" not in process.said()


def test_workers_do_not_share_a_port_with_another_server(
    serve_workers: Callable[..., Process], start: Callable[..., Process], tmp_path: Path
) -> None:
    process = serve_workers(2)
    second = start("launch", "render", tmp_path, "--workers", "2", "--host", "127.0.0.1", "--port", str(process.port))
    assert second.popen.wait(60) == 2
    assert f"cannot listen on 127.0.0.1:{process.port}" in second.said()
    assert process.end() == 0
