"""Engines as processes of their own, so that they can be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@define
class EngineProcess:
    model: Path
    port: int
    pause: float
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.name}"

    def start(self) -> None:
        script = Path(__file__).with_name("steady_engine.py")
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, str(script), str(self.model), str(self.port), str(self.pause)]
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, start_new_session=True)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, "the engine ended"
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("the engine does not start")

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)

    def stop(self) -> None:
        """As an operator does: what runs may finish."""
        self.send(signal.SIGTERM)
        assert self.process is not None
        self.process.wait(40)


@contextmanager
def running(model: Path, count: int, pause: float) -> Iterator[list[EngineProcess]]:
    engines = [EngineProcess(model, free_port(), pause) for _ in range(count)]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_until_ready()
        yield engines
    finally:
        for engine in engines:
            if engine.process is not None and engine.process.poll() is None:
                engine.kill()
