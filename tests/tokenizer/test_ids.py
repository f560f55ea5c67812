"""Ids, offsets and texts equal those of transformers, and those that the reference server answered."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.errors import BadRequest
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer
from tests.tokenizer.samples import FAMILIES, TEXTS

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama without prefix space": ("llama2", {"add_prefix_space": False}),
    "llama, new behaviour": ("llama2", {"legacy": False}),
    "llama as it stands": ("llama2", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "llama rebuilt as gemma": ("llama2", {"tokenizer_class": "GemmaTokenizer"}),
    "a class that is not known": ("llama2", {"tokenizer_class": "NobodysTokenizer"}),
    "no class at all": ("llama2", {"tokenizer_class": None}),
    "no list of added tokens": ("llama2", {"added_tokens_decoder": None}),
    "byte-level under llama's name": ("smollm2", {"tokenizer_class": "LlamaTokenizerFast"}),
    "gpt2 with prefix space": ("smollm2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
    "cohere": ("smollm2", {"tokenizer_class": "CohereTokenizer"}),
    "gpt-neox": ("smollm2", {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True}),
    "qwen3.5": ("smollm2", {"tokenizer_class": "Qwen3_5Tokenizer"}),
    "own names": ("smollm2", {"image_token": "<|im_start|>", "extra_special_tokens": {"audio_token": "<audio>"}}),
    "more special tokens": ("smollm2", {"additional_special_tokens": ["hello", "<new>"], "pad_token": "<pad>"}),
    "added tokens with other flags": (
        "smollm2",
        {"added_tokens_decoder": {"1": {"content": "<|im_start|>", "lstrip": True, "special": False}}},
    ),
    "special tokens are text": ("smollm2", {"split_special_tokens": True}),
}
"""What a folder's tokenizer_config.json may say beside its tokenizer.json: None takes a key away."""


def assert_same(ours: Tokenizer, theirs: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            encoded = theirs(text, add_special_tokens=special, return_offsets_mapping=True)
            assert ours.encode(text, special) == encoded["input_ids"], text
            assert ours.encode_with_offsets(text, special) == (encoded["input_ids"], encoded["offset_mapping"]), text
            for skip in (True, False):
                assert ours.decode(encoded["input_ids"], skip) == theirs.decode(encoded["input_ids"], skip), text
        split = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text, False, split_special_tokens=True) == split, text
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens == {name: str(token) for name, token in theirs.special_tokens_map.items()}
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    added = theirs.added_tokens_decoder
    assert ours.added_tokens == {token_id: token.content for token_id, token in added.items()}
    assert ours.special_ids == {token_id for token_id, token in added.items() if token.special}


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(
    family: str,
    folder_of: Callable[[str], Path],
    tokenizer_of: Callable[[str], Tokenizer],
    auto_tokenizer: Any,
) -> None:
    assert_same(tokenizer_of(family), auto_tokenizer.from_pretrained(folder_of(family)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers_however_the_folder_is_configured(
    variant: str, folder_of: Callable[[str], Path], tmp_path: Path, auto_tokenizer: Any
) -> None:
    family, changes = VARIANTS[variant]
    source = folder_of(family)
    shutil.copy(source / "tokenizer.json", tmp_path)
    shutil.copy(source / "config.json", tmp_path)
    config = json.loads((source / "tokenizer_config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(load_model_files(str(tmp_path)))
    theirs = auto_tokenizer.from_pretrained(tmp_path)
    if config.get("split_special_tokens"):
        # transformers puts the switch back with every call that names it, so compare without naming it.
        assert [ours.encode(text, True) for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    else:
        assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("recorded", "family"),
    [("smollm2", "smollm2"), ("llama31", "llama3_1"), *((f, f) for f in FAMILIES[1:6] if f != "llama3_1")],
)
def test_equals_the_reference_servers_recorded_ids(
    recorded: str, family: str, shared_folder: Path, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    compared = 0
    with gzip.open(shared_folder / "parity" / "render" / f"{recorded}.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            request = line["request"]
            if not line["route"].startswith("/v1/completions") or line["status"] != 200 or not line["hf_agrees"]:
                continue
            prompts = request["prompt"] if isinstance(request["prompt"], list) else [request["prompt"]]
            for prompt, answer in zip(prompts, line["response"], strict=True):
                if isinstance(prompt, str):
                    assert tokenizer.encode(prompt, request.get("add_special_tokens", True)) == answer["token_ids"], (
                        line["id"]
                    )
                    compared += 1
    assert compared >= 10


def test_special_tokens_in_text_can_be_ordinary(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("qwen3")
    text = "<|im_end|><think>"
    im_end, think = tokenizer.encode(text, False)
    assert tokenizer.added_tokens[im_end] == "<|im_end|>"
    split = tokenizer.encode(text, False, split_special_tokens=True)
    assert im_end not in split
    assert split[-1] == think  # added, but not special
    assert tokenizer.decode(split, skip_special_tokens=True) == text
    assert tokenizer.encode(text, False) == [im_end, think]


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff ok", "\ud83d\ud83d"])
def test_half_a_surrogate_pair_is_refused(text: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    with pytest.raises(BadRequest, match="surrogate"):
        tokenizer.encode(text, add_special_tokens=True)
    with pytest.raises(BadRequest, match="surrogate"):
        tokenizer.encode_with_offsets(text, add_special_tokens=False)
    assert tokenizer.id_of(text) is None


@given(text=st.text(max_size=80))
def test_any_text_is_encoded_within_its_bounds(text: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("qwen3")
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert len(text) <= len(ids) * tokenizer.max_token_chars or not text


def test_threads_do_not_disturb_each_other(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("qwen3")
    text = " ".join(TEXTS) * 40
    expected = [tokenizer.encode(text, False), tokenizer.encode(text, False, split_special_tokens=True)]
    wrong: list[int] = []

    def work(turn: int) -> None:
        split = bool(turn % 2)
        for _ in range(5):
            if tokenizer.encode(text, False, split_special_tokens=split) != expected[split]:
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fingerprint_tells_tokenizers_apart(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    source = folder_of("smollm2")
    first = load_tokenizer(load_model_files(str(source)))
    again = load_tokenizer(load_model_files(str(source)))
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) <= 16
    shutil.copytree(source, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors"))
    at = tmp_path / "other" / "tokenizer_config.json"
    at.write_text(json.dumps(json.loads(at.read_text()) | {"additional_special_tokens": ["<new>"]}))
    assert load_tokenizer(load_model_files(str(at.parent))).fingerprint != first.fingerprint
