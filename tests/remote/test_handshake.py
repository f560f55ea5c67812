"""An engine with another model is refused by name; one that is not there is waited for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from driving import config_of, remote, run_engine
from processes import free_port
from serving import Server, serving, until
from wishes import CHAT, talk

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode
from scaleout.errors import ConfigError
from scaleout.generate.remote.comparison import Own, compare, share_a_name
from scaleout.generate.remote.dialect import Facts

ECHO = EngineOptions(backend="echo")


@pytest.fixture(scope="module")
def other_tokenizer(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model but for one thing: its tokenizer writes everything small."""
    folder = tmp_path_factory.mktemp("other") / smollm2_folder.name
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        if (smollm2_folder / name).exists():
            shutil.copy(smollm2_folder / name, folder / name)
    raw = json.loads((folder / "tokenizer.json").read_text())
    assert raw["normalizer"] is None
    raw["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module", params=["generate", "completions", "llamacpp"])
def other_engine(request: pytest.FixtureRequest, other_tokenizer: Path) -> Iterator[Server]:
    with run_engine(request.param, other_tokenizer, ECHO) as engine:
        yield engine


def test_a_tokenizer_that_differs_is_refused_by_name(other_engine: Server, smollm2_folder: Path) -> None:
    config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(other_engine))
    with pytest.raises(ConfigError) as refusal, serving(make_app(config)):
        pass
    assert f"engine 127.0.0.1:{other_engine.port}: tokenizer: the same text is" in str(refusal.value)


def test_a_refusal_can_be_switched_off(
    other_engine: Server, smollm2_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(other_engine, check=False))
    with serving(make_app(config)) as front:
        assert front.post(CHAT, {"model": "m", "max_tokens": 2, **talk("Hi")}).status == 200
    assert "differs, and is used all the same: tokenizer" in caplog.text


def test_another_model_differs_in_everything(tiny_model: Callable[..., Path], smollm2_folder: Path) -> None:
    with run_engine("generate", tiny_model("llama2"), ECHO) as engine:
        config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(engine, models=("other",)))
        with pytest.raises(ConfigError) as refusal, serving(make_app(config)):
            pass
    for part in (
        "model name: it serves 'm', not 'other'",
        "vocabulary size: 32000 there, 49152 here",
        "special ids",
        "tokenizer",
    ):
        assert part in str(refusal.value)


def test_an_engine_that_is_down_at_start_is_waited_for(smollm2_folder: Path, start: Callable[..., Server]) -> None:
    port = free_port()
    front = start(smollm2_folder, EngineOptions(urls=(f"http://127.0.0.1:{port}",), health_interval=0.05))
    assert front.get("/live").status == 200
    assert front.get("/ready").error["message"] == "No engine takes requests"
    (engine,) = front.get("/engines").json["engines"]
    assert (engine["state"], engine["reason"]) == ("down", "ECONNREFUSED")
    assert front.post(f"{CHAT}/render", {"model": "m", **talk("Hi")}).status == 200


def test_an_engine_s_key(smollm2_folder: Path, start: Callable[..., Server]) -> None:
    config = config_of(Mode.TOKENS_ONLY, smollm2_folder, engine=ECHO, api_keys=("secret",))
    with serving(make_app(config)) as engine:
        with pytest.raises(ConfigError, match=r"it wants another key .* see --engine-api-key"):
            start(smollm2_folder, remote(engine))
        front = start(smollm2_folder, remote(engine, api_key="secret"))
        assert front.post(CHAT, {"model": "m", "max_tokens": 2, **talk("Hi")}).status == 200


def test_a_server_without_an_engine_is_no_engine(smollm2_folder: Path, start: Callable[..., Server]) -> None:
    with (
        serving(make_app(config_of(Mode.RENDER_ONLY, smollm2_folder))) as engine,
        pytest.raises(ConfigError) as refusal,
    ):
        start(smollm2_folder, remote(engine))
    assert "a server without an engine" in str(refusal.value)


async def test_an_engine_that_returns_as_another_is_refused_and_the_rest_goes_on(
    smollm2_folder: Path, other_tokenizer: Path, start: Callable[..., Server]
) -> None:
    with run_engine("generate", smollm2_folder, ECHO) as stays:
        with run_engine("generate", smollm2_folder, ECHO) as leaves:
            front = start(smollm2_folder, remote(stays, leaves))
            port = leaves.port
            assert [engine["state"] for engine in front.get("/engines").json["engines"]] == ["up", "up"]
        await until(lambda: front.get("/engines").json["engines"][1]["state"] == "down")
        config = config_of(Mode.TOKENS_ONLY, other_tokenizer, engine=ECHO)
        with serving(make_app(config), port=port):
            await until(lambda: front.get("/engines").json["engines"][1]["state"] == "refused")
            for _ in range(4):
                assert front.post(CHAT, {"model": "m", "max_tokens": 2, **talk("Hi")}).status == 200


OWN = Own(("org/model", "m"), 100, (2,), frozenset((1, 2)), "print", (5, 6))
SAME = Facts(("m",), (), 2048, 100, (2,), (1, 2), "print", (5, 6))


@pytest.mark.parametrize(
    ("changes", "differs", "unknown"),
    [
        ({}, [], []),
        ({"models": ("x",), "roots": ("/data/Model/",)}, [], []),
        ({"models": ("x",)}, ["model name"], []),
        ({"models": ()}, [], ["model name"]),
        ({"models": ("models/model.Q4_K.gguf",)}, [], []),
        ({"vocab_size": 101}, ["vocabulary size"], []),
        ({"vocab_size": None, "eos_token_ids": None}, [], ["vocabulary size", "ends of text"]),
        ({"eos_token_ids": (3,)}, ["ends of text"], []),
        ({"special_ids": (1, 3)}, ["special ids: 2, 3"], []),
        ({"fingerprint": "x"}, [], []),  # other files, and yet the same ids
        ({"fingerprint": "x", "probe_ids": (5, 7)}, ["tokenizer"], []),
        ({"fingerprint": None, "probe_ids": None}, [], ["tokenizer"]),
    ],
)
def test_what_is_compared(changes: dict[str, Any], differs: list[str], unknown: list[str]) -> None:
    found, not_told = compare(evolve(SAME, **changes), OWN)
    assert len(found) == len(differs)
    assert all(sentence.startswith(start) for sentence, start in zip(found, differs, strict=True))
    assert not_told == unknown


def test_names_of_one_model() -> None:
    assert share_a_name(["SmolLM2-135M-Instruct.Q4_1.gguf"], ["HuggingFaceTB/SmolLM2-135M-Instruct"])
    assert not share_a_name(["SmolLM2-135M.gguf"], ["HuggingFaceTB/SmolLM2-135M-Instruct"])
    assert not share_a_name(["SmolLM2-135M-Instruct-v2"], ["SmolLM2-135M-Instruct"])
