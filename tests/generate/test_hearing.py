"""Sounds in prompts, alone and beside pictures and films: the engine's greedy ids are those of transformers' own generation."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from asking import opened
from attrs import evolve
from media_files import film, sound
from serving import serving
from split import ok
from vision_asking import COUNT, ROOMY, Case, all_answers, answer, answers_as_transformers
from vision_models import Seeing, changed, first_item, known_by_hash, tensors_of, view

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.core.features import Batched, Field, Tensor
from scaleout.errors import BadRequest

pytestmark = pytest.mark.engine

pytest.importorskip("soundfile")

NAMES = ["qwen2_audio", "qwen2_5_omni"]
LOW, HIGH, LONG = sound(1.0), sound(1.0, pitch=900), sound(2.3)
SMALL_STEPS = {"max_num_batched_tokens": 7, "block_size": 4, "enable_prefix_caching": False}


def heard(model: Seeing, *files: bytes) -> dict[str, torch.Tensor]:
    """What the model's own feature extractor makes of sounds, as the model is given it."""
    import soundfile
    from transformers import AutoFeatureExtractor

    waves = [soundfile.read(io.BytesIO(data), dtype="float32")[0] for data in files]
    made = AutoFeatureExtractor.from_pretrained(model.folder)(
        waves, sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="pt"
    )
    return {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}


@pytest.fixture(scope="session")
def cases(seeing: Callable[[str], Seeing]) -> Callable[[str], Mapping[str, Case]]:
    """Of a family: one sound, two sounds, another sound behind the same ids, and text alone."""

    @cache
    def find(name: str) -> Mapping[str, Case]:
        model = seeing(name)
        prompts = {
            "one": ("Hear: ", LOW, " what is it?"),
            "two": ("Hear: ", LOW, " and ", LONG, " differ?"),
            "other": ("Hear: ", HIGH, " what is it?"),
            "text": ("Say something of cities and their rivers.",),
        }
        return {key: case(model, *parts) for key, parts in prompts.items()}

    return find


def case(model: Seeing, *parts: Any) -> Case:
    request = model.render(*parts)
    sounds = [part for part in parts if isinstance(part, bytes)]
    return Case(request, model.expected(request.token_ids, heard(model, *sounds) if sounds else {}, COUNT))


@pytest.mark.parametrize("name", NAMES)
async def test_greedy_ids_are_those_of_transformers(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Alone; beside text; from the cache, where equal ids with another sound in them find only what stands before it."""
    two = cases(name)["two"]
    async with opened(seeing(name).files, block_size=4, **ROOMY) as engine:
        await answers_as_transformers(engine, seeing(name), cases(name), heard(seeing(name), LOW, LONG))
        before = engine.stats().encoder_cache_hits
        by_hash = evolve(two.request, features=known_by_hash(two.request.features))
        assert (await answer(engine, by_hash)).token_ids == two.expected
        assert engine.stats().encoder_cache_hits == before + 2


@pytest.mark.parametrize("name", NAMES)
async def test_small_steps_change_nothing(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    every = list(cases(name).values())
    async with opened(seeing(name).files, **SMALL_STEPS, **ROOMY) as engine:
        assert await all_answers(engine, every) == [case.expected for case in every]


async def test_sounds_beside_pictures_and_films(seeing: Callable[[str], Seeing]) -> None:
    pytest.importorskip("av")
    model = seeing("qwen2_5_omni")
    request = model.render("See ", view(1), " hear ", LOW, " see ", film(16, size=(112, 84)), " hear ", LONG, " now?")
    tensors = {**tensors_of(request, "image"), **tensors_of(request, "video"), **heard(model, LOW, LONG)}
    tensors["video_second_per_grid"] = tensors.pop("second_per_grid_ts")
    expected = model.expected(request.token_ids, tensors, COUNT)
    for options in ({}, SMALL_STEPS):
        async with opened(model.files, **options, **ROOMY) as engine:
            assert (await answer(engine, request)).token_ids == expected


async def test_bad_sounds_are_refused_and_hurt_nobody(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Among others numbers that would ask for terabytes."""

    def floats(*shape: int) -> Field:
        return Field(Tensor("float32", shape, bytes(4 * torch.Size(shape).numel())), Batched())

    def number(value: int) -> Field:
        return Field(Tensor("int64", (), value.to_bytes(8, "little")), Batched())

    bad: list[tuple[str, dict[str, Field], str]] = [
        ("qwen2_5_omni", {"audio_feature_lengths": number(2**40)}, "does not fit"),
        ("qwen2_5_omni", {"input_audio_features": floats(16, 3), "audio_feature_lengths": number(3)}, "embeddings"),
        ("qwen2_5_omni", {"input_audio_features": floats(5, 100)}, "tower cannot take"),
        ("qwen2_5_omni", {"input_audio_features": floats(100)}, "does not fit"),
        ("qwen2_audio", {"input_features": floats(16, 6)}, "tower cannot take"),
        ("qwen2_audio", {"feature_attention_mask": number(7)}, "tower cannot take|embeddings"),
        ("qwen2_audio", {"input_features": floats(1)}, "tower cannot take"),
    ]
    for name in NAMES:
        one = cases(name)["one"]
        async with opened(seeing(name).files, **ROOMY) as engine:
            for fields, words in [(fields, words) for family, fields, words in bad if family == name]:
                merged = {**(first_item(one.request).fields or {}), **fields}
                wrong = evolve(one.request, features=changed(one.request.features, fields=merged, hash="bad"))
                with pytest.raises(BadRequest, match=words):
                    await answer(engine, wrong)
            assert (await answer(engine, one.request)).token_ids == one.expected
            assert engine.stats().failed_steps == 0


def test_sounds_over_http(seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]) -> None:
    """The coupled answer, and that of render and generate, are those of transformers."""
    model, one = seeing("qwen2_5_omni"), cases("qwen2_5_omni")["one"]
    engine = EngineOptions(device="cpu", dtype="float32", max_num_seqs=4)
    config = ModeConfig(
        Mode.STANDARD,
        model=str(model.folder),
        served_model_names=("m",),
        scale_out=True,
        access_log=False,
        engine=engine,
    )
    content = [
        {"type": "text", "text": "Hear: "},
        {"type": "input_audio", "input_audio": {"data": b64encode(LOW).decode(), "format": "wav"}},
        {"type": "text", "text": " what is it?"},
    ]
    asked = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": COUNT,
        "temperature": 0,
        "ignore_eos": True,
    }
    with serving(make_app(config)) as server:
        coupled = ok(server.post("/v1/chat/completions", {**asked, "return_token_ids": True}))
        answered = [coupled]
        for payload in ("tensors", "source"):
            rendered = ok(server.post("/v1/chat/completions/render", {**asked, "mm_payload": payload}))
            answered.append(ok(server.post("/inference/v1/generate", rendered)))
    assert [each["choices"][0]["token_ids"] for each in answered] == [one.expected] * 3
