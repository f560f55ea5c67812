"""The reference peer as live servers. `SCALEOUT_PEER` names its `vllm` command; without it these tests are skipped."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

START_SECONDS = 300


@frozen
class PeerServer(Server):
    """A peer's process; only its port is known of it."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def run_peer(log: Path, *arguments: str, **variables: str) -> Iterator[PeerServer]:
    """The peer's command with `arguments` and environment `variables`, from its first healthy answer to the end of the tests."""
    port = free_port()
    environ = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", **variables}
    command = [os.environ["SCALEOUT_PEER"], *arguments, "--port", str(port), "--host", "127.0.0.1"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not healthy(port):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, "the peer does not start"
            time.sleep(0.5)
        yield PeerServer(app=None, port=port, loop=None)
    finally:
        process.terminate()
        process.wait(60)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def peer_command() -> str:
    command = os.environ.get("SCALEOUT_PEER")
    if not command:
        pytest.skip("SCALEOUT_PEER does not name the reference server's command")
    return command


@pytest.fixture(scope="session")
def start_peer(peer_command: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`with start_peer(*arguments, **variables) as server`: a peer of a test's own."""

    def start(*arguments: str, **variables: str) -> Any:
        return run_peer(tmp_path_factory.mktemp("peer") / "peer.log", *arguments, **variables)

    return start


@pytest.fixture(scope="session")
def peer_front(peer_command: str, smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("peer") / "render.log"
    with run_peer(log, "launch", "render", str(smollm2_folder), "--served-model-name", "m") as server:
        yield server


@pytest.fixture(scope="session")
def peer_engine(peer_command: str, smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("peer") / "engine.log"
    options = ("--served-model-name", "m", "--dtype", "float32", "--max-model-len", "2048", "--tokens-only")
    with run_peer(log, "serve", str(smollm2_folder), *options) as server:
        yield server


@pytest.fixture(scope="session")
def our_front(smollm2_folder: Path) -> Iterator[Server]:
    config = ModeConfig(Mode.RENDER_ONLY, model=str(smollm2_folder), served_model_names=("m",), access_log=False)
    with serving(make_app(config)) as server:
        yield server


@pytest.fixture(scope="session")
def our_engine(smollm2_folder: Path) -> Iterator[Server]:
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=8)
    config = ModeConfig(
        Mode.TOKENS_ONLY, model=str(smollm2_folder), served_model_names=("m",), access_log=False, engine=engine
    )
    with serving(make_app(config)) as server:
        yield server
