"""Pictures between the peer and us: its render with our engine, our render with its engine, and transformers agree on the greedy ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

from attrs import evolve
from media_files import data_url, picture
from serving import Server, serving
from split import ok

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from tests.render.mm_models import FAMILIES, Family, build

pytestmark = [pytest.mark.peer, pytest.mark.engine, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions/render"
COUNT = 12
END = 5
PICTURES = [picture(112, 84, 1), picture(56, 140, 2)]
"""Of sizes that need no resizing, which two libraries would do in two ways."""
TEXT = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 128}
ROPE = {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}


def larger(family: Family) -> Family:
    """With heads of a size that the peer's attention knows."""
    config = {
        **family.config,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "text_config": {**family.config["text_config"], **TEXT, "rope_scaling": ROPE, "rope_parameters": ROPE},
        "vision_config": {**family.config["vision_config"], "embed_dim": 64, "hidden_size": 128},
    }
    return evolve(family, config=config)


def write_weights(folder: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(folder)
    for part in (config, config.get_text_config()):
        part.eos_token_id, part.pad_token_id, part.bos_token_id = END, END, END
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def stages(
    start_peer: Callable[..., Any], tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """Fronts and engines of both, for one model of Qwen2-VL's kind."""
    pytest.importorskip("torch")
    folder = build(larger(FAMILIES["qwen2_vl"]), tiny_model("qwen3"), tmp_path_factory.mktemp("qwen2_vl"))
    write_weights(folder)
    name = ("--served-model-name", "m")
    sizes = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager")
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=4)
    config = {"model": str(folder), "served_model_names": ("m",), "access_log": False}
    with ExitStack() as running:
        try:
            # Its --tokens-only servers cannot load models that see: they have no tokenizer, which its processors ask for.
            serve = start_peer("serve", str(folder), *name, *sizes, "--enable-scale-out")
            peer = running.enter_context(serve)
        except AssertionError as error:
            if "failed to be inspected" not in str(error):
                raise
            pytest.skip("the peer lacks torchvision, without which it serves no pictures")
        yield {
            "peer front": peer,
            "peer engine": peer,
            "our front": running.enter_context(serving(make_app(ModeConfig(Mode.RENDER_ONLY, workers=1, **config)))),
            "our engine": running.enter_context(
                serving(make_app(ModeConfig(Mode.TOKENS_ONLY, engine=engine, **config)))
            ),
        }


def body(*pictures: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What?"}]
    parts += [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in pictures]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": COUNT, "temperature": 0}


@pytest.mark.parametrize("count", [1, 2])
def test_four_combinations_give_the_same_ids(stages: dict[str, Server], count: int) -> None:
    asked = {**body(*PICTURES[:count]), "ignore_eos": True}
    rendered = {side: ok(stages[f"{side} front"].post(CHAT, asked)) for side in ("our", "peer")}
    found = {
        (front, engine): ok(stages[f"{engine} engine"].post("/inference/v1/generate", rendered[front]))
        for front in ("our", "peer")
        for engine in ("our", "peer")
    }
    ids = {which: answer["choices"][0]["token_ids"] for which, answer in found.items()}
    assert len(ids["our", "our"]) == COUNT
    assert len({tuple(one) for one in ids.values()}) == 1, ids
