"""Hub ids, against a small server that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scaleout.errors import ConfigError
from scaleout.tokenizer import load_model_files
from scaleout.tokenizer.hub import is_hub_id

COMMIT = "a" * 40
REPOSITORY = "some-org/some-model"


class Hub:
    """A hub with one repository; `asked` lists every file that was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        hub = self

        class Answers(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                hub.tokens.add(self.headers.get("authorization"))
                path = self.path.split("?")[0]
                headers = {"X-Repo-Commit": COMMIT}
                if path.startswith(f"/api/models/{REPOSITORY}"):
                    names = [{"rfilename": name} for name in files]
                    tree = [{"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in files.items()]
                    about = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": names, "tags": []}
                    data = json.dumps(tree if "/tree/" in path else about).encode()
                elif path.startswith(f"/{REPOSITORY}/resolve/"):
                    name = path.split("/resolve/")[1].split("/", 1)[1]
                    hub.asked.append(name)
                    data = files[name]
                    headers["ETag"] = f'"{hashlib.sha1(data).hexdigest()}"'
                else:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "RepoNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(200)
                for key, value in (headers | {"Content-Length": str(len(data))}).items():
                    self.send_header(key, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the test's output is not the place."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hub(tiny_model: Callable[..., Path]) -> Iterator[Hub]:
    folder = tiny_model("llama2")
    files = {name: (folder / name).read_bytes() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")}
    files |= {"chat_template.jinja": b"template", "additional_chat_templates/rag.jinja": b"rag"}
    files |= {
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"weights",
        "model.gguf": b"GGUF",
        "README.md": b"read",
    }
    hub = Hub(files)
    yield hub
    hub.close()


PROGRAM = """
import json, sys
from scaleout.errors import ConfigError
from scaleout.tokenizer import load_model_files, load_tokenizer
try:
    files = load_model_files(sys.argv[1], revision=sys.argv[2] or None, hf_token=sys.argv[3] or None)
    ids = load_tokenizer(files).encode("Hello", True)
    print(json.dumps([files.max_model_len, files.chat_template, ids]))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


def run(
    hub: Hub, cache: Path, name: str = REPOSITORY, revision: str = "", token: str = "", **environment: str
) -> object:
    """Load from the hub in a fresh process: the hub's library reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "PYTHONWARNINGS": "ignore"}
    keep = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, revision, token],
        env=keep | settings | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: object = json.loads(done.stdout)
    return answer


EXPECTED = [4096, {"default": "template", "rag": "rag"}, [1, 22557]]


def test_only_small_files_are_fetched_and_then_kept(hub: Hub, tmp_path: Path) -> None:
    assert run(hub, tmp_path, token="secret") == EXPECTED
    assert set(hub.asked) == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/rag.jinja",
    }
    assert "Bearer secret" in hub.tokens
    hub.asked.clear()
    assert run(hub, tmp_path, HF_HUB_OFFLINE="1") == EXPECTED
    assert hub.asked == []


def test_offline_without_the_files(hub: Hub, tmp_path: Path) -> None:
    answer = run(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert isinstance(answer, str)
    assert "offline" in answer
    assert REPOSITORY in answer


def test_no_such_repository(hub: Hub, tmp_path: Path) -> None:
    answer = run(hub, tmp_path, name="some-org/other", revision="v2")
    assert isinstance(answer, str)
    assert "no such repository" in answer
    assert "v2" in answer


def test_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    hub = Hub({})
    hub.close()
    answer = run(hub, tmp_path)
    assert isinstance(answer, str)
    assert "cannot be reached" in answer


@pytest.mark.parametrize("name", ["gpt2", "org/name", "Org-1/Name_2.5", "org/_x"])
def test_names_of_repositories(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize("name", ["", "a/b/c", "./a", "../a", "a b", "/a", "~/a", "a/../b", "a--b/c", "x" * 97, "org/"])
def test_names_of_nothing(name: str) -> None:
    assert not is_hub_id(name)
    with pytest.raises(ConfigError):
        load_model_files(name or "missing folder")
