"""A picture in a conversation: the coupled answer is that of the three stages one by one, and of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

from media_files import data_url
from serving import Server, serving
from split import ask_split, events, ok
from vision_models import Seeing, view

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.pipeline.stages import engine_options

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
NAMES = ["qwen2_vl", "smolvlm"]
COUNT = 8
PARTS = ("Look: ", view(1), " and ", view(2, 60, 140), " differ?")


@contextmanager
def served(model: Seeing, mode: Mode) -> Iterator[Server]:
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=4, enable_prefix_caching=False)
    scale_out = mode is Mode.STANDARD or None
    config = ModeConfig(
        mode, model=str(model.folder), served_model_names=("m",), scale_out=scale_out, access_log=False, engine=engine
    )
    with serving(make_app(config)) as server:
        yield server


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, seeing: Callable[[str], Seeing]) -> Seeing:
    return seeing(request.param)


@pytest.fixture(scope="module")
def server(model: Seeing) -> Iterator[Server]:
    with served(model, Mode.STANDARD) as server:
        yield server


@pytest.fixture(scope="module")
def front(model: Seeing) -> Iterator[Server]:
    with served(model, Mode.RENDER_ONLY) as server:
        yield server


def body(**changes: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in PARTS
    ]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": COUNT, "temperature": 0}
    return {**asked, "ignore_eos": True, "return_token_ids": True, **changes}


def nameless(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "id": None, "created": None}


@pytest.mark.parametrize("payload", ["tensors", "source"])
def test_coupled_equals_split_equals_transformers(model: Seeing, server: Server, front: Server, payload: str) -> None:
    coupled = ok(server.post(CHAT, body(), {"X-Request-Id": "a"}))
    split = ask_split(front, server, CHAT, body(mm_payload=payload), "a")
    assert nameless(coupled) == nameless(split)
    request = model.render(*PARTS)
    images = [part for part in PARTS if not isinstance(part, str)]
    (choice,) = coupled["choices"]
    assert choice["token_ids"] == model.expected(request.token_ids, model.tensors(*images), COUNT)
    assert coupled["usage"]["prompt_tokens"] == len(request.token_ids)


def test_a_stream_says_the_same(server: Server) -> None:
    whole = ok(server.post(CHAT, body()))
    chunks = events(server.post(CHAT, body(stream=True)))
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]


def test_a_hash_is_enough_once_the_picture_was_seen(server: Server, front: Server) -> None:
    asked = body(mm_payload="none")
    rendered = ok(front.post(f"{CHAT}/render", asked))
    assert rendered["features"]["kwargs_data"] is None
    rendered["cache_salt"] = "of this test"
    refused = server.post("/inference/v1/generate", rendered)
    assert refused.status == 400
    assert "is not in the cache; send its data" in refused.error["message"]
    full = {**ok(front.post(f"{CHAT}/render", body())), "cache_salt": "of this test"}
    first, again = (ok(server.post("/inference/v1/generate", one))["choices"] for one in (full, rendered))
    assert [one["token_ids"] for one in first] == [one["token_ids"] for one in again]
    told = dict(
        line.split()
        for line in server.get("/metrics").body.decode().splitlines()
        if "encoder_cache" in line and line[0] != "#"
    )
    assert float(told["scaleout_engine_encoder_cache_hits"]) >= 2
    assert float(told["scaleout_engine_encoder_cache_misses"]) >= 1
    assert float(told["scaleout_engine_encoder_cache_bytes"]) > 0


def test_the_cache_has_a_flag() -> None:
    config = ModeConfig.load(["serve", "m", "--encoder-cache-memory-bytes", "8MiB"], {})
    assert engine_options(config).encoder_cache_memory == 8 << 20
