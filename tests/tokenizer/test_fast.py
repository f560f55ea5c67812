"""The fast encoder: used where it gives the same ids, and only there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.errors import BadRequest, ConfigError
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer, speed_up
from scaleout.tokenizer.check_texts import PLAIN_TEXTS, check_texts
from scaleout.tokenizer.fast import find_difference
from tests.tokenizer.samples import TEXTS

fastokens = pytest.importorskip("fastokens")

FAST = ("smollm2", "qwen3", "deepseek_v3")
"""Families that fastokens reads; it reads the other byte-level ones and gemma3 too, which take long to load."""


@pytest.fixture(scope="session")
def fast_tokenizer_of(folder_of: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    @cache
    def load(family: str) -> Tokenizer:
        return load_tokenizer(load_model_files(str(folder_of(family))), backend="auto", corpus=TEXTS)

    return load


@pytest.mark.parametrize("family", FAST)
def test_same_ids(
    family: str, fast_tokenizer_of: Callable[[str], Tokenizer], tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    fast, slow = fast_tokenizer_of(family), tokenizer_of(family)
    assert (fast.backend, slow.backend) == ("fast", "hf")
    assert "same ids" in fast.backend_reason
    assert fast.fingerprint == slow.fingerprint
    for text in [*TEXTS, *PLAIN_TEXTS]:
        for special in (True, False):
            for split in (True, False):
                expected = slow.encode(text, special, split_special_tokens=split)
                assert fast.encode(text, special, split_special_tokens=split) == expected, text
            assert fast.encode_with_offsets(text, special) == slow.encode_with_offsets(text, special)


@pytest.mark.parametrize("family", FAST[:2])
@given(texts=st.lists(st.text(max_size=12) | st.sampled_from(TEXTS), max_size=8))
def test_same_ids_for_any_text(
    family: str,
    texts: list[str],
    fast_tokenizer_of: Callable[[str], Tokenizer],
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    text = "".join(texts)
    assert fast_tokenizer_of(family).encode(text, True) == tokenizer_of(family).encode(text, True)


def test_same_ids_for_a_growing_conversation(
    fast_tokenizer_of: Callable[[str], Tokenizer], tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    fast, slow = fast_tokenizer_of("qwen3"), tokenizer_of("qwen3")
    prompt = ""
    for turn in range(12):
        role = "assistant" if turn % 2 else "user"
        prompt += f"<|im_start|>{role}\n{TEXTS[turn] * (turn + 1)}<|im_end|>\n"
        for text in (prompt, prompt + "<|im_start|>assistant\n"):
            assert fast.encode(text, False) == slow.encode(text, False)


def test_texts_that_only_the_library_takes(fast_tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = fast_tokenizer_of("smollm2")
    assert tokenizer.encode("a\x14b", False) == tokenizer.encode_with_offsets("a\x14b", False)[0]
    with pytest.raises(BadRequest, match="surrogate"):
        tokenizer.encode("\ud800", False)


def test_a_vocabulary_that_it_cannot_read(folder_of: Callable[[str], Path]) -> None:
    files = load_model_files(str(folder_of("llama2")))
    tokenizer = load_tokenizer(files, backend="auto")
    assert tokenizer.backend == "hf"
    assert "Metaspace" in tokenizer.backend_reason
    assert tokenizer.encode("Hello", False) == load_tokenizer(files).encode("Hello", False)
    with pytest.raises(ConfigError, match="Metaspace"):
        load_tokenizer(files, backend="fast")


def test_another_vocabulary_is_found_out(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    texts = list(check_texts(tokenizer.added_tokens.values()))
    same = fastokens.Tokenizer.from_json_str(tokenizer.to_json())
    assert find_difference(tokenizer, same, texts) is None
    # One setting, one flag of a token: each shows.
    json_text = tokenizer.to_json()
    for change in (('"add_prefix_space":false', '"add_prefix_space":true'), ('"special":true', '"special":false')):
        assert change[0] in json_text
        other = fastokens.Tokenizer.from_json_str(json_text.replace(*change))
        assert find_difference(tokenizer, other, texts) is not None, change


def test_a_difference_in_the_callers_corpus_alone_counts(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    other = json.loads(tokenizer.to_json())
    vocabulary = other["model"]["vocab"]
    vocabulary["Ġmountain"], vocabulary["Ġbeautiful"] = vocabulary["Ġbeautiful"], vocabulary["Ġmountain"]
    swapped = fastokens.Tokenizer.from_json_str(json.dumps(other))
    assert find_difference(tokenizer, swapped, check_texts(())) is None
    difference = find_difference(tokenizer, swapped, check_texts((), ["a beautiful day"]))
    assert difference is not None
    assert "a beautiful day" in difference


def test_without_the_package(folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    tokenizer = load_tokenizer(load_model_files(str(folder_of("smollm2"))), backend="auto")
    assert tokenizer.backend == "hf"
    assert "not installed" in tokenizer.backend_reason


FORKING = """
import os, sys
from scaleout.tokenizer import load_model_files, load_tokenizer
tokenizer = load_tokenizer(load_model_files(sys.argv[1]), backend="fast")
text = sys.argv[2] * 2000
expected = tokenizer.encode(text, False)  # long enough for a thread of its own
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode(text + "!", False)[:-1] == expected else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_worker_encodes(folder_of: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", FORKING, str(folder_of("smollm2")), "A sentence of some length. "]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_speed_up_is_for_a_loaded_tokenizer(folder_of: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(load_model_files(str(folder_of("smollm2"))))
    before = tokenizer.encode("Hello, world!", True)
    assert speed_up(tokenizer, corpus=["Hello"])
    assert tokenizer.backend == "fast"
    assert tokenizer.encode("Hello, world!", True) == before
