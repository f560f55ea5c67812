"""Every recorded request, sent to servers that were started with the flags of the recording."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import ModeConfig
from tests.render.recorded import EXCEPTED, FAMILIES, compare

TUNED = [
    "--trust-request-chat-template",
    "--exclude-tools-when-tool-choice-none",
    "--default-chat-template-kwargs",
    '{"enable_thinking": false}',
    "--override-generation-config",
    '{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 512}',
]
FLAGS = {
    "smollm2": [],
    "qwen3": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"],
    "llama31": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    "llama2": [],
    "deepseek_v3": [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "deepseek_v3",
        "--reasoning-parser",
        "deepseek_v3",
    ],
    "gemma3": ["--enable-auto-tool-choice", "--tool-call-parser", "pythonic"],
}


@pytest.fixture
def serve(
    shared_folder: Path, smollm2_folder: Path, tiny_model: Callable[..., Path]
) -> Iterator[Callable[[str, str], Server]]:
    """`serve(family, server)`: a server started as the recorded one was."""
    with ExitStack() as running:

        def start(family: str, server: str) -> Server:
            model = smollm2_folder if family == "smollm2" else tiny_model(FAMILIES[family])
            flags = [*FLAGS[family], *(TUNED if server == "tuned" else [])]
            if server == "small":
                flags += ["--max-model-len", "256"]
            if family == "llama2":
                flags += ["--chat-template", str(shared_folder / "parity" / "render" / "llama2.jinja")]
            argv = ["launch", "render", str(model), "--served-model-name", "m", "--workers", "1", *flags]
            return running.enter_context(serving(make_app(ModeConfig.load(argv, {}))))

        yield start


def differences(line: dict[str, Any], server: Server) -> list[str]:
    body = line["body"].encode("utf-8", "surrogatepass") if line["request"] is None else line["request"]
    answer = server.post(line["route"], body, line.get("headers"))
    if answer.status != line["status"]:
        return [f"status {line['status']} → {answer.status}: {answer.body[:300]!r}"]
    if answer.status != 200:
        assert answer.json["error"]["message"]
        return []
    theirs, ours = line["response"], answer.json
    if isinstance(theirs, list) != isinstance(ours, list):
        return ["one answer against a list"]
    pairs = zip(theirs, ours, strict=True) if isinstance(theirs, list) else [(theirs, ours)]
    return [difference for one, other in pairs for difference in compare(one, other)]


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_requests(family: str, shared_folder: Path, serve: Callable[[str, str], Server]) -> None:
    servers: dict[str, Server] = {}
    wrong, same = [], 0
    with gzip.open(shared_folder / "parity" / "render" / f"{family}.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if line["server"] not in servers:
                servers[line["server"]] = serve(family, line["server"])
            found = differences(line, servers[line["server"]])
            if bool(found) != (line["id"] in EXCEPTED):
                wrong.append(f"{line['id']}: {', '.join(found) or 'agrees, but is listed as an exception'}")
            same += not found
    assert not wrong, "\n".join(wrong)
    assert same > 50
