"""Tokenizers of six families and of SmolLM2, each loaded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer
from tests.tokenizer.samples import FAMILIES


@pytest.fixture(scope="session")
def folder_of(tiny_model: Callable[..., Path], request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The Hugging Face folder of a family."""

    def find(family: str) -> Path:
        if family == "smollm2":
            folder: Path = request.getfixturevalue("smollm2_folder")
            return folder
        return tiny_model(family)

    return find


@pytest.fixture(scope="session")
def tokenizer_of(folder_of: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    """The tokenizer of a family."""

    @cache
    def load(family: str) -> Tokenizer:
        return load_tokenizer(load_model_files(str(folder_of(family))))

    return load


@pytest.fixture(params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_of: Callable[[str], Tokenizer]) -> Tokenizer:
    """Each family's tokenizer in turn."""
    return tokenizer_of(request.param)


@pytest.fixture(scope="session")
def auto_tokenizer() -> Any:
    """transformers' AutoTokenizer, or a skip."""
    return pytest.importorskip("transformers").AutoTokenizer
