"""Folders that only transformers can read: converted once, kept, and the same as what transformers makes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaleout.errors import ConfigError
from scaleout.tokenizer import load_model_files, load_tokenizer
from scaleout.tokenizer.convert import cache_folder
from tests.tokenizer.samples import TEXTS


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def without_tokenizer_json(source: Path, folder: Path) -> Path:
    """The same vocabulary as the two files of GPT-2's time."""
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 1024, "vocab_size": 49152}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    return folder


def of_another_class(source: Path, folder: Path) -> Path:
    """A class that brings its own pipeline and is not among the recorded ones."""
    shutil.copy(source / "tokenizer.json", folder)
    shutil.copy(source / "config.json", folder)
    config = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": "CodeLlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("make", "family"), [(without_tokenizer_json, "smollm2"), (of_another_class, "llama2")])
def test_equals_transformers(
    make: Callable[[Path, Path], Path],
    family: str,
    folder_of: Callable[[str], Path],
    tmp_path: Path,
    auto_tokenizer: Any,
) -> None:
    folder = make(folder_of(family), tmp_path)
    files = load_model_files(str(folder))
    ours, theirs = load_tokenizer(files), auto_tokenizer.from_pretrained(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours.encode(text, special) == ids, text
            assert ours.decode(ids, True) == theirs.decode(ids, True), text
    assert ours.special_tokens == {name: str(token) for name, token in theirs.special_tokens_map.items()}
    # The second time nothing is converted: the kept file is all it takes.
    (kept,) = (path for path in cache_folder().iterdir() if path.is_dir())
    before = (kept / "tokenizer.json").stat().st_mtime_ns
    assert load_tokenizer(files).fingerprint == ours.fingerprint
    assert (kept / "tokenizer.json").stat().st_mtime_ns == before
    assert list(cache_folder().iterdir()) == [kept]


def test_the_missing_package_is_named(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = load_model_files(str(of_another_class(folder_of("llama2"), tmp_path)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install transformers"):
        load_tokenizer(files)


def test_a_folder_that_transformers_cannot_read(tmp_path: Path, auto_tokenizer: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.model").write_bytes(b"\x00nonsense")
    with pytest.raises(ConfigError, match="transformers cannot read the tokenizer"):
        load_tokenizer(load_model_files(str(tmp_path)))
    assert not [path for path in cache_folder().iterdir() if path.is_dir()]
