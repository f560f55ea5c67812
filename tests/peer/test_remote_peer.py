"""Our front end over the peer's engines, by every wire that they have: texts are those of our own engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from split import events, ok

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

pytestmark = [pytest.mark.peer, pytest.mark.engine, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"
OPTIONS = ("--served-model-name", "m", "--dtype", "float32", "--max-model-len", "2048")
PEERS: dict[str, tuple[tuple[str, ...], str]] = {
    "tokens-only": (("--tokens-only",), "generate"),
    "scale-out": (("--enable-scale-out",), "generate"),
    "plain": ((), "completions"),
}
"""How the peer is started, and the wire by which it is driven then."""
PROMPTS = ("What is 2+2?", "Name three colours.", "Say something with an emoji 🙂.", "Was ist naïve Kunst?")


def config(mode: Mode, model: Path, engine: EngineOptions) -> ModeConfig:
    return ModeConfig(
        mode, model=str(model), served_model_names=("m",), access_log=False, max_model_len=2048, engine=engine
    )


@pytest.fixture(scope="module", params=PEERS)
def peer(
    request: pytest.FixtureRequest, start_peer: Callable[..., Any], smollm2_folder: Path
) -> Iterator[tuple[str, Server]]:
    arguments, wire = PEERS[request.param]
    with start_peer("serve", str(smollm2_folder), *OPTIONS, *arguments) as server:
        yield wire, server


@pytest.fixture(scope="module")
def front(peer: tuple[str, Server], smollm2_folder: Path) -> Iterator[Server]:
    engine = EngineOptions(urls=(f"http://127.0.0.1:{peer[1].port}",))
    with serving(make_app(config(Mode.RENDER_ONLY, smollm2_folder, engine))) as server:
        yield server


@pytest.fixture(scope="module")
def inside(smollm2_folder: Path) -> Iterator[Server]:
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=8)
    with serving(make_app(config(Mode.STANDARD, smollm2_folder, engine))) as server:
        yield server


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 20, "temperature": 0, **more}


def test_the_wire_is_found(front: Server, peer: tuple[str, Server]) -> None:
    (engine,) = front.get("/engines").json["engines"]
    assert (engine["state"], engine["dialect"], engine["model"]) == ("up", peer[0], "m")
    print(f"\nnot compared: {engine['not_compared']}")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_texts_are_those_of_our_engine(front: Server, inside: Server, prompt: str) -> None:
    mine, theirs = (ok(server.post(CHAT, chat(prompt))) for server in (front, inside))
    assert mine["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"]
    assert mine["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"]
    assert mine["choices"][0]["stop_reason"] is None
    assert mine["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
    streamed = events(front.post(CHAT, chat(prompt, stream=True)))
    text = "".join(event["choices"][0]["delta"]["content"] or "" for event in streamed)
    assert text == mine["choices"][0]["message"]["content"]
    assert len(streamed) > 5


def test_an_end_of_text_has_no_stop_reason(front: Server, inside: Server) -> None:
    body = chat("Say hi and nothing else.", max_tokens=200)
    mine, theirs = (ok(server.post(CHAT, body))["choices"][0] for server in (front, inside))
    assert mine["finish_reason"] == theirs["finish_reason"] == "stop"
    assert mine["stop_reason"] is None
    assert mine["message"]["content"] == theirs["message"]["content"]


def test_logprobs_and_choices(front: Server, inside: Server) -> None:
    body = chat("What is 2+2?", max_tokens=6, logprobs=True, top_logprobs=2)
    mine, theirs = (ok(server.post(CHAT, body))["choices"][0]["logprobs"]["content"] for server in (front, inside))
    assert [entry["token"] for entry in mine] == [entry["token"] for entry in theirs]
    assert [len(entry["top_logprobs"]) for entry in mine] == [len(entry["top_logprobs"]) for entry in theirs]
    assert all(abs(a["logprob"] - b["logprob"]) < 1e-2 for a, b in zip(mine, theirs, strict=True))
    three = ok(front.post(CHAT, chat("A word?", n=3, temperature=1, seed=5, max_tokens=6)))
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert len({json.dumps(choice["message"]) for choice in three["choices"]}) > 1


def test_prompt_logprobs_come_although_streams_lack_them(front: Server, inside: Server) -> None:
    body = {"model": "m", "prompt": "One two three", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
    mine, theirs = (ok(server.post("/v1/completions", body))["choices"][0] for server in (front, inside))
    assert mine["text"] == theirs["text"]
    assert mine["logprobs"]["tokens"] == theirs["logprobs"]["tokens"]
    assert mine["logprobs"]["token_logprobs"][0] is None
    for a, b in zip(mine["logprobs"]["token_logprobs"][1:], theirs["logprobs"]["token_logprobs"][1:], strict=True):
        assert abs(a - b) < 1e-2


def test_what_the_engine_refuses_is_the_client_s_error(front: Server) -> None:
    answer = front.post(CHAT, chat("Hi", logprobs=True, top_logprobs=20, stop_token_ids=[10_000_000]))
    assert answer.status == 400
    assert "10000000" in answer.error["message"] or "vocabulary" in answer.error["message"]
    assert front.get("/ready").status == 200


def test_a_client_that_leaves_frees_the_engine(front: Server) -> None:
    connection = front.connect()
    body = json.dumps(chat("Write a long story.", max_tokens=2000, stream=True, ignore_eos=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    assert b"200" in connection.recv(100)
    connection.close()
    # The same engine answers at once: nothing of the story is computed any more.
    assert ok(front.post(CHAT, chat("Hi", max_tokens=2)))["choices"][0]["message"]["content"]
    (engine,) = front.get("/engines").json["engines"]
    assert engine["in_flight"] == 0
