"""Renderers on real tokenizers and the models' own templates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scaleout.config import Mode, ModeConfig
from scaleout.pipeline.stages import Front, open_front
from scaleout.render import ModelFacts, Renderer, RenderSettings
from scaleout.tokenizer import ModelFiles, Tokenizer, load_model_files, load_tokenizer
from tests.render import mm_asking
from tests.render.mm_models import FAMILIES, PIECES, build

MODELS = ("smollm2", "qwen3", "llama3_1", "llama2", "deepseek_v3", "gemma3")
"""Models with a chat template of their own, but for llama2, whose template the tests bring."""

OUT_OF_TEMPLATE = """
{%- for m in messages %}{{ bos_token if loop.first }}[INST] {{ m.content }} [/INST]{% endfor -%}
"""


@pytest.fixture(scope="session")
def model_folder(tiny_model: Callable[..., Path], smollm2_folder: Path) -> Callable[[str], Path]:
    """`model_folder(name)`: the folder of one of MODELS, or of gptoss."""

    def folder(name: str) -> Path:
        return smollm2_folder if name == "smollm2" else tiny_model(name)

    return folder


@pytest.fixture(scope="session")
def loaded(model_folder: Callable[[str], Path]) -> Callable[[str], tuple[ModelFiles, Tokenizer]]:
    """`loaded(name)`: a model's files and its tokenizer, read once."""

    @cache
    def load(name: str) -> tuple[ModelFiles, Tokenizer]:
        files = load_model_files(str(model_folder(name)))
        return files, load_tokenizer(files)

    return load


@pytest.fixture(scope="session")
def make_renderer(loaded: Callable[[str], tuple[ModelFiles, Tokenizer]]) -> Callable[..., Renderer]:
    """`make_renderer(name, template=None, max_model_len=None, settings={}, **options)`: a renderer of a model."""

    def make(
        name: str, template: str | None = None, max_model_len: int | None = None, settings: Any = None, **options: Any
    ) -> Renderer:
        files, tokenizer = loaded(name)
        own = files.chat_template if files.chat_template is not None else OUT_OF_TEMPLATE
        facts = ModelFacts(
            name="m",
            max_model_len=max_model_len or files.max_model_len,
            vocab_size=max(files.vocab_size, tokenizer.vocab_size),
            chat_template=own if template is None else template,
            eos_token_ids=files.eos_token_ids,
        )
        return Renderer(tokenizer, facts, settings=RenderSettings(**(settings or {})), **options)

    return make


@pytest.fixture(scope="session")
def mm_folder(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`mm_folder(name)`: the folder of a model of `mm_models.FAMILIES`."""

    @cache
    def folder(name: str) -> Path:
        family = FAMILIES[name]
        return build(family, tiny_model(family.base), tmp_path_factory.mktemp(name), PIECES)

    return folder


@pytest.fixture(scope="module")
def open_model(mm_folder: Callable[[str], Path]) -> Callable[[str], Front]:
    """`open_model(name)`: such a model's render stage."""

    @cache
    def front(name: str) -> Front:
        config = ModeConfig(Mode.RENDER_ONLY, model=str(mm_folder(name)), served_model_names=("m",))
        return open_front(config, load_model_files(config.model))

    return front


@pytest.fixture(scope="module")
def own_processor(mm_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """`own_processor(name)`: its processor of transformers, which reads no films."""
    return cache(lambda name: mm_asking.own_processor(name, mm_folder(name)))
