"""Server processes of this run: pinned to one core, on loopback, ended by their own ids."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from attrs import frozen

from bench.models import REPOSITORY, SHARED, Model, Unavailable

START_SECONDS = 300.0
STOP_SECONDS = 15.0
SETTLE_SECONDS = 60.0
IDLE = 0.05
"""Share of a core that a server which has settled may still use."""
NAME = "m"
"""The model's name in every request."""
SHORT = {"model": NAME, "messages": [{"role": "user", "content": "What is 2+2?"}], "max_tokens": 32}
RENDER = "/v1/chat/completions/render"
QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@frozen
class Contender:
    """Who can be measured: `command` takes a model and starts a render server. `derenders`: whether it does that too."""

    name: str
    command: Sequence[str]
    flags: Sequence[str]
    derenders: bool = True
    parsers: bool = True

    def arguments(self, model: Model, port: int) -> list[str]:
        parsers = model.parsers if self.parsers else ()
        at = ("--host", "127.0.0.1", "--port", str(port))
        return [*self.command, model.path, "--served-model-name", NAME, *at, *self.flags, *parsers]


def find_contenders(scaleout: Path, processes: int = 1) -> tuple[list[Contender], list[str]]:
    """Ours, then the peers that are installed; and what to tell about those that are not.

    `SCALEOUT_PEER` names the peer's command, else it is looked for in the cache. Its Rust server lies in a folder around it.
    `processes`: how many each may serve with; the Rust server has threads instead.
    """
    found = [Contender("ours", [str(scaleout), "launch", "render"], ["--workers", str(processes), "--no-access-log"])]
    given = os.environ.get("SCALEOUT_PEER")
    peer = Path(given) if given else REPOSITORY / ".cache" / "peer" / "venv" / "bin" / "vllm"
    if not peer.exists():
        installer = SHARED / "peer" / "install.sh"
        how = f"{installer} {REPOSITORY / '.cache' / 'peer'}" if installer.exists() else "../shared/peer is absent here"
        return found, [
            f"no peer at {peer}: figures of ours alone. To install one: {how}; or let SCALEOUT_PEER name one"
        ]
    several = ["--api-server-count", str(processes)] if processes > 1 else []
    found.append(Contender("peer", [str(peer), "launch", "render"], ["--disable-uvicorn-access-log", *several]))
    places = [folder / "vllm-rs" for folder in list(peer.absolute().parents)[:3]]
    rust = next((place for place in places if place.exists()), None)
    if rust is None:
        return found, [f"no Rust server (vllm-rs) beside {peer}"]
    found.append(Contender("rust", [str(rust), "render"], [], derenders=False, parsers=False))
    return found, []


@frozen
class Server:
    """A running server. `started`: seconds from the process's start to its first rendered request."""

    contender: Contender
    url: str
    process: subprocess.Popen[bytes]
    started: float

    def post(self, path: str, body: object, timeout: float = 60.0) -> object:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def settle(self) -> None:
        """Wait until what goes on beside the serving after a start is over, so that no load is measured together with it."""
        deadline = time.monotonic() + SETTLE_SECONDS
        before = self.busy()
        while time.monotonic() < deadline:
            time.sleep(1)
            after = self.busy()
            if after - before < IDLE:
                return
            before = after

    def resident(self) -> float:
        """Resident memory of the largest of the server's processes, in MB (10⁶ bytes)."""
        return float(max((process.memory_info().rss for process in family(self.process.pid)), default=0)) / 1e6

    def busy(self) -> float:
        """Seconds of processor time so far, of the process and all its children."""
        return float(sum(sum(process.cpu_times()[:2]) for process in family(self.process.pid)))


def family(pid: int) -> list[psutil.Process]:
    """A process and its children, as far as they live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@frozen
class Cores:
    """One core for the servers and another for the load; None where the system cannot pin."""

    server: int | None
    load: int | None

    @contextmanager
    def for_server(self) -> Iterator[None]:
        """Processes started within belong to the servers' core."""
        self.pin(self.server)
        try:
            yield
        finally:
            self.pin(self.load)

    @staticmethod
    def pin(core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})


def choose_cores(pinned: bool = True) -> Cores:
    if not pinned or not hasattr(os, "sched_setaffinity"):
        return Cores(None, None)
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[-1], allowed[0])


@contextmanager
def running(contender: Contender, model: Model, cores: Cores, folder: Path) -> Iterator[Server]:
    """The contender's server until the block ends. Raises `Unavailable` with its last words when it does not start."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    log = folder / f"{contender.name}-{port}.log"
    began = time.perf_counter()
    with log.open("wb") as out, cores.for_server():
        process = subprocess.Popen(
            contender.arguments(model, port),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(os.environ, model),
            cwd=folder,
            # Ctrl-C reaches this process alone, which then ends its servers one by one.
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        yield Server(contender, url, process, _wait(url, process, began, log))
    finally:
        stop(process)


def _environment(given: Mapping[str, str], model: Model) -> dict[str, str]:
    """The same plain settings for everybody, whatever the caller has set for servers of their own."""
    # An installed program has its bytecode beside it; a developer's wish to write none would be measured as start time.
    kept = {name: value for name, value in given.items() if not name.startswith(("SCALEOUT_", "VLLM_", "PYTHONDONT"))}
    return {**kept, **QUIET, **({"HF_HUB_OFFLINE": "1"} if Path(model.path).exists() else {})}


def _wait(url: str, process: subprocess.Popen[bytes], began: float, log: Path) -> float:
    """Seconds to the first 200 of a render request."""
    body = json.dumps(SHORT).encode()
    while (passed := time.perf_counter() - began) < START_SECONDS:
        if process.poll() is not None:
            raise Unavailable(f"ended with code {process.returncode}{_last_words(log)}")
        request = urllib.request.Request(url + RENDER, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=START_SECONDS - passed) as answer:
                answer.read()
            return time.perf_counter() - began
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise Unavailable(f"answered {error.code}: {error.read(500).decode(errors='replace')}") from None
        except OSError:
            pass
        time.sleep(0.01)
    raise Unavailable(f"gave no answer within {START_SECONDS:g} s{_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return "".join(f"\n    {line}" for line in lines)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and the children that it leaves behind."""
    children = family(process.pid)[1:]
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
