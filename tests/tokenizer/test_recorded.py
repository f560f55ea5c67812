"""The recorded facts are those of the installed transformers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from scaleout.tokenizer.recorded import PLAIN, choose_class, rebuilt_class, recorded


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.tokenizer.record_transformers import record

        return record()


def test_pipelines_are_those_of_the_installed_release(fresh: dict[str, Any]) -> None:
    assert recorded()["classes"] == fresh["classes"]


def test_everything_is_that_of_the_recorded_release(fresh: dict[str, Any]) -> None:
    if fresh["transformers"] != recorded()["transformers"]:
        pytest.skip(f"recorded from transformers {recorded()['transformers']}, installed is {fresh['transformers']}")
    assert recorded() == fresh | {"flags": list(fresh["flags"])}


@pytest.mark.parametrize(
    ("model_type", "in_folder", "byte_level", "chosen"),
    [
        ("llama", "LlamaTokenizer", False, "LlamaTokenizer"),
        ("llama", "LlamaTokenizerFast", True, PLAIN),
        ("llama", "PreTrainedTokenizerFast", True, PLAIN),
        ("llama", "NobodysTokenizer", False, PLAIN),
        ("llama", None, False, PLAIN),
        ("mistral", "LlamaTokenizer", False, PLAIN),
        ("phi3", "LlamaTokenizer", False, PLAIN),
        ("qwen3", "Qwen2Tokenizer", True, "Qwen2Tokenizer"),
        ("qwen3", None, True, "Qwen2Tokenizer"),
        ("qwen2", "PreTrainedTokenizerFast", True, "Qwen2Tokenizer"),
        ("gemma3_text", "GemmaTokenizerFast", False, "GemmaTokenizer"),
        (None, "GPT2Tokenizer", True, "GPT2Tokenizer"),
        (None, None, True, PLAIN),
    ],
)
def test_class_of_a_folder(model_type: str | None, in_folder: str | None, byte_level: bool, chosen: str) -> None:
    assert choose_class(model_type, in_folder, byte_level=byte_level) == chosen


def test_some_repositories_are_known_by_name() -> None:
    name = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
    assert choose_class("llama", "LlamaTokenizer", model_name=name) == PLAIN


def test_flags_of_another_type_count_as_absent() -> None:
    assert rebuilt_class("LlamaTokenizer", {"legacy": "yes"}) == rebuilt_class("LlamaTokenizer", {})
    assert rebuilt_class("NobodysTokenizer", {}) is None
