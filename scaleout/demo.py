"""`scaleout demo`: a render-only and a tokens-only server with a small model, and one question on its way through both."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import define, frozen

from scaleout.demo_model import NAME, fetch_model
from scaleout.errors import ScaleoutError

USAGE = """usage: scaleout demo [--serve] [--model MODEL]

Starts a render-only and a tokens-only server on this machine, asks "What is 2+2?" through both, and shows what travels.
  --serve        keep the servers up and print the curl lines
  --model MODEL  another model, as a Hugging Face folder, hub id or GGUF file
"""
QUESTION = {"messages": [{"role": "user", "content": "What is 2+2?"}], "max_tokens": 32, "temperature": 0}
PORTS = (8100, 8200)
START_SECONDS = 300.0
STOP_SECONDS = 15.0


class DemoFailed(ScaleoutError):
    """A server did not start or did not answer; the text is for a person at a terminal."""


@frozen
class Server:
    """One running server of the demo."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a JSON request; DemoFailed with the server's own words when it refuses."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as exc:
            raise DemoFailed(
                f"{self.url}{path} answered {exc.code}: {exc.read(2000).decode(errors='replace')}"
            ) from None
        except OSError as exc:
            raise DemoFailed(f"{self.url}{path}: {exc}{self.last_words()}") from None

    def is_ready(self) -> bool:
        """Whether /ready says 200; DemoFailed when the process has ended."""
        if self.process.poll() is not None:
            raise DemoFailed(f"the {self.name} server ended with code {self.process.returncode}{self.last_words()}")
        try:
            with urllib.request.urlopen(self.url + "/ready", timeout=2):
                return True
        except OSError:
            return False

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n" + "\n".join(f"    {line}" for line in lines) if lines else ""


# ---------------------------------------------------------------------------------------------- the command


def run_demo(argv: Sequence[str]) -> int:
    """Exit code 0 when an answer came, 1 when something failed, 2 for a wrong command line, 130 after Ctrl-C."""
    words = list(argv)
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0
    serve = "--serve" in words
    words = [word for word in words if word != "--serve"]
    model = words[1] if len(words) == 2 and words[0] == "--model" else None
    if words and model is None:
        sys.stderr.write(f"scaleout demo: unexpected {' '.join(words)}\n{USAGE}")
        return 2
    try:
        with _signals_raise() as interrupts:
            _demonstrate(model, serve, interrupts)
    except ScaleoutError as exc:
        sys.stderr.write(f"scaleout demo: {exc}\n")
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 0 if serve else 130
    return 0


@define
class Interrupts:
    """Signals that end the demo and its servers. One that comes while they are held waits: a server half started has nobody to stop it."""

    held: bool = False
    waiting: bool = False

    def take(self, number: int, frame: FrameType | None) -> None:
        if not self.held:
            raise KeyboardInterrupt
        self.waiting = True

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        """Raises `KeyboardInterrupt` if a signal came meanwhile."""
        self.held = False
        if self.waiting:
            self.waiting = False
            raise KeyboardInterrupt


@contextmanager
def _signals_raise() -> Iterator[Interrupts]:
    """These end the demo and its servers like Ctrl-C does, which itself is ignored in jobs that a script starts in the background."""
    interrupts = Interrupts()
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupts.take) for number in ours}
    try:
        yield interrupts
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _demonstrate(model: str | None, serve: bool, interrupts: Interrupts) -> None:
    if importlib.util.find_spec("torch") is None:
        raise DemoFailed("the tokens-only server needs torch: pip install 'scaleout[engine]'")
    source = model or str(fetch_model())
    served = model or NAME
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaleout-demo-")))
        ports = _free_ports()
        print("starting two servers (the engine loads torch and the weights first) …", flush=True)
        began = time.monotonic()
        common = [source, "--served-model-name", served, "--host", "127.0.0.1"]
        interrupts.hold()
        render = stack.enter_context(
            _running("render-only", ["launch", "render", *common, "--workers", "1"], ports[0], folder)
        )
        engine = stack.enter_context(_running("tokens-only", ["serve", *common, "--tokens-only"], ports[1], folder))
        interrupts.release()
        for server in (render, engine):
            _wait_until_ready(server)
            print(f"  {server.name:<12} {server.url}   ready after {time.monotonic() - began:.1f} s", flush=True)
        prompt_tokens = _ask(render, engine, served)
        if serve:
            print(_curl_lines(render, engine, served, prompt_tokens), flush=True)
            while all(server.process.poll() is None for server in (render, engine)):
                time.sleep(0.5)
            raise DemoFailed("a server ended by itself" + render.last_words() + engine.last_words())


# ---------------------------------------------------------------------------------------------- the three calls


def _ask(render: Server, engine: Server, model: str) -> int:
    """Print each call and its answer. Returns the number of prompt tokens."""
    question = {"model": model, **QUESTION}
    _show(1, "render", "request → token ids, no GPU", render, "/v1/chat/completions/render", question)
    prompt = render.post("/v1/chat/completions/render", question)
    ids = prompt["token_ids"]
    _answer(f"{len(ids)} token ids {_short(ids)}", f"which stand for {_text_of(render, model, ids)!r}")

    _show(2, "generate", "token ids → token ids, no text", engine, "/inference/v1/generate", prompt)
    generated = engine.post("/inference/v1/generate", prompt)
    new_ids = generated["choices"][0]["token_ids"]
    _answer(f"{len(new_ids)} token ids {_short(new_ids)}", f"which stand for {_text_of(render, model, new_ids)!r}")

    context = {"model": model, "generate_response": generated, "prompt_tokens": len(ids), "chat_request": question}
    _show(3, "derender", "token ids → answer, no GPU", render, "/v1/chat/completions/derender", context)
    answer = render.post("/v1/chat/completions/derender", context)
    choice = answer["choices"][0]
    _answer(json.dumps(choice["message"]["content"], ensure_ascii=False), f"finish_reason {choice['finish_reason']}")
    print()
    return len(ids)


def _show(step: int, name: str, what: str, server: Server, path: str, body: Any) -> None:
    print(
        f"\n{step}. {name}: {what}\n   POST {server.url}{path}\n   → {_short(json.dumps(body, ensure_ascii=False), 150)}"
    )


def _answer(*lines: str) -> None:
    print("   ← " + "\n     ".join(lines), flush=True)


def _short(value: Any, length: int = 90) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 2] + " …"


def _text_of(render: Server, model: str, ids: Sequence[int]) -> str:
    return str(render.post("/detokenize", {"model": model, "tokens": list(ids)})["prompt"])


def _curl_lines(render: Server, engine: Server, model: str, prompt_tokens: int) -> str:
    question = json.dumps({"model": model, **QUESTION})
    header = "-H 'Content-Type: application/json'"
    context = (
        f'{{"model": "{model}", "chat_request": {question}, "prompt_tokens": {prompt_tokens}, "generate_response": '
    )
    return f"""The same by hand, in another terminal:

curl -s {render.url}/v1/chat/completions/render {header} -d '{question}' > request.json
curl -s {engine.url}/inference/v1/generate {header} -d @request.json > response.json
{{ echo '{context}'; cat response.json; echo '}}'; }} \\
  | curl -s {render.url}/v1/chat/completions/derender {header} -d @-

Ctrl-C stops both servers."""


# ---------------------------------------------------------------------------------------------- servers


@contextmanager
def _running(name: str, command: Sequence[str], port: int, folder: Path) -> Iterator[Server]:
    """A server process, stopped at the end whatever happens. It does not see the terminal's Ctrl-C: it is stopped from here."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "scaleout", *command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Server(name, f"http://127.0.0.1:{port}", process, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        raise


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not server.is_ready():
        if time.monotonic() > deadline:
            raise DemoFailed(f"the {server.name} server is not ready after {START_SECONDS:.0f} s{server.last_words()}")
        time.sleep(0.1)


def _free_ports() -> list[int]:
    """One free port for each server: the usual one, or any where that is taken."""
    with ExitStack() as stack:
        return [_reserve(stack, port) for port in PORTS]


def _reserve(stack: ExitStack, port: int) -> int:
    listener = stack.enter_context(socket.socket())
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # as the servers do: a port that was used just now is free
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.bind(("127.0.0.1", 0))
    return int(listener.getsockname()[1])
