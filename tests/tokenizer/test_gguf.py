"""GGUF files: the same ids as transformers makes of them, and no harm from damaged ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.errors import ConfigError
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer
from scaleout.tokenizer.gguf import ArrayLength, read_gguf
from tests.tokenizer.samples import TEXTS

Value = str | bool | int | float | list[str] | list[int] | list[float]

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def write_gguf(path: Path, metadata: dict[str, Value]) -> Path:
    """A GGUF file with this metadata and no tensors."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def scalar(value: str | bool | float) -> tuple[int, bytes]:
        match value:
            case bool():
                return 7, struct.pack("<?", value)
            case int():
                return 4, struct.pack("<I", value)
            case float():
                return 6, struct.pack("<f", value)
        return 8, string(value)

    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(metadata))]
    for key, value in metadata.items():
        if isinstance(value, list):
            items = [scalar(item) for item in value]
            body = struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)
            parts.append(string(key) + struct.pack("<I", 9) + body)
        else:
            kind, data = scalar(value)
            parts.append(string(key) + struct.pack("<I", kind) + data)
    path.write_bytes(b"".join(parts))
    return path


def vocabulary_of(folder: Path, *, scores: bool) -> dict[str, Value]:
    """The tokenizer of a folder as a GGUF file's metadata: merges, or scores by rank as SentencePiece has them."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    ids = {**tokenizer["model"]["vocab"], **{content: token["id"] for content, token in added.items()}}
    spelled = {token_id: content for content, token_id in ids.items()}
    tokens = [spelled.get(token_id, f"[UNUSED{token_id}]") for token_id in range(max(spelled) + 1)]
    types = []
    for token in tokens:
        kind = BYTE if token.startswith("<0x") else NORMAL
        types.append((CONTROL if added[token]["special"] else USER_DEFINED) if token in added else kind)
    metadata: dict[str, Value] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if scores:
        metadata["tokenizer.ggml.scores"] = [-float(token_id) for token_id in range(len(tokens))]
    else:
        merges = tokenizer["model"]["merges"]
        metadata["tokenizer.ggml.merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    return metadata


def about(architecture: str, kind: str, **more: Value) -> dict[str, Value]:
    shape = {"block_count": 2, "context_length": 4096, "embedding_length": 64, "feed_forward_length": 128}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16}
    metadata: dict[str, Value] = {"general.architecture": architecture, "tokenizer.ggml.model": kind}
    metadata |= {f"{architecture}.{key}": value for key, value in (shape | heads).items()}
    metadata[f"{architecture}.attention.layer_norm_rms_epsilon"] = 1e-5
    metadata[f"{architecture}.rope.freq_base"] = 10000.0
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


VARIANTS: dict[str, tuple[str, bool, dict[str, Value]]] = {
    "llama by scores": ("llama2", True, about("llama", "llama", bos_token_id=1, eos_token_id=2)),
    "llama by scores, with flags": (
        "llama2",
        True,
        about("llama", "llama", bos_token_id=1, eos_token_id=2, add_bos_token=False, add_eos_token=True),
    ),
    "phi3": ("llama2", True, about("phi3", "llama", bos_token_id=1, eos_token_id=2)),
    "llama 3's words": (
        "smollm2",
        False,
        about("llama", "gpt2", pre="llama-bpe", bos_token_id=1, eos_token_id=2, add_bos_token=True),
    ),
}


def assert_same(ours: Tokenizer, theirs: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours.encode(text, special) == ids, text
            assert ours.decode(ids, False) == theirs.decode(ids), text
    assert ours.vocab_size == len(theirs)
    added = theirs.added_tokens_decoder
    assert ours.added_tokens == {token_id: token.content for token_id, token in added.items()}
    assert ours.special_ids == {token_id for token_id, token in added.items() if token.special}
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)


def test_smollm2_equals_transformers(smollm2_gguf: Path, auto_tokenizer: Any) -> None:
    files = load_model_files(str(smollm2_gguf))
    theirs = auto_tokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    assert_same(load_tokenizer(files), theirs)
    assert files.chat_template == theirs.chat_template


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(
    variant: str, folder_of: Callable[[str], Path], tmp_path: Path, auto_tokenizer: Any
) -> None:
    family, scores, metadata = VARIANTS[variant]
    path = write_gguf(tmp_path / "model.gguf", metadata | vocabulary_of(folder_of(family), scores=scores))
    ours = load_tokenizer(load_model_files(str(tmp_path)))
    assert_same(ours, auto_tokenizer.from_pretrained(tmp_path, gguf_file=path.name))


def test_gguf_and_folder_agree(smollm2_gguf: Path, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    ours = load_tokenizer(load_model_files(str(smollm2_gguf.parent)))  # a folder with one GGUF file counts as the file
    for text in TEXTS:
        assert ours.encode(text, True) == tokenizer_of("smollm2").encode(text, True)
    assert ours.special_tokens["eos_token"] == "<|im_end|>"


def test_what_a_file_says_about_its_model(smollm2_gguf: Path) -> None:
    files = load_model_files(str(smollm2_gguf))
    assert (files.gguf, files.folder, files.tokenizer_gguf) == (smollm2_gguf, None, smollm2_gguf)
    assert (files.max_model_len, files.vocab_size, files.eos_token_ids) == (8192, 49152, (2,))
    assert files.generation_config == {"bos_token_id": 1, "eos_token_id": [2]}
    assert files.config["model_type"] == "llama"
    assert isinstance(files.chat_template, str)


def test_ends_and_templates_by_name(tmp_path: Path) -> None:
    metadata = about("qwen3", "gpt2", eos_token_id=7, eot_token_id=8, eom_token_id=7, tokens=["a", "b"]) | {
        "tokenizer.chat_template": "one",
        "tokenizer.chat_template.tool_use": "two",
        "tokenizer.chat_templates": ["tool_use"],
    }
    files = load_model_files(str(write_gguf(tmp_path / "m.gguf", metadata)))
    assert files.eos_token_ids == (7, 8)
    assert files.chat_template == {"default": "one", "tool_use": "two"}
    assert (files.max_model_len, files.vocab_size) == (4096, 2)


def test_a_file_without_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama", "llama.context_length": 16})
    files = load_model_files(str(path))
    assert (files.max_model_len, files.vocab_size, files.chat_template) == (16, 0, None)
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(files)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
        ({"tokenizer.ggml.eos_token_id": 99}, "eos_token_id"),
        ({"tokenizer.ggml.merges": ["a"]}, "merge"),
        ({"tokenizer.ggml.model": "llama"}, "score"),
    ],
)
def test_a_tokenizer_that_cannot_be_built(more: dict[str, Value], reason: str, tmp_path: Path) -> None:
    metadata = about("llama", "gpt2", tokens=["a", "b", "ab"])
    if "score" not in reason:
        metadata["tokenizer.ggml.merges"] = ["a b"]
    files = load_model_files(str(write_gguf(tmp_path / "m.gguf", metadata | more)))
    with pytest.raises(ConfigError, match=reason):
        load_tokenizer(files)


def test_arrays_are_counted_unless_asked_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"words": ["a", "bc"], "numbers": [1, 2, 3], "last": "x"})
    assert read_gguf(path) == {"words": ArrayLength(2), "numbers": ArrayLength(3), "last": "x"}
    assert read_gguf(path, ("words", "numbers")) == {"words": ["a", "bc"], "numbers": [1, 2, 3], "last": "x"}


@given(
    cut=st.integers(0, 400),
    changes=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=6),
)
def test_a_damaged_file_is_refused_or_read(cut: int, changes: list[tuple[int, int]], tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("gguf")
    metadata = about("llama", "gpt2", tokens=["a", "b", "ab"], merges=["a b"], eos_token_id=1)
    path = write_gguf(folder / "m.gguf", metadata)
    data = bytearray(path.read_bytes())
    for at, byte in changes:
        data[at % len(data)] = byte
    path.write_bytes(data[: len(data) - cut] if cut < len(data) else b"")
    with suppress(ConfigError):
        load_tokenizer(load_model_files(str(path)))


def test_counts_beyond_the_file_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    array = struct.pack("<Q", 1) + b"x" + struct.pack("<IIQ", 9, 8, 1 << 60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    with pytest.raises(ConfigError, match="damaged"):
        read_gguf(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60))
    with pytest.raises(ConfigError, match="keys"):
        read_gguf(path)
