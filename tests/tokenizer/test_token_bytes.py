"""Which decoders let tokens be read alone, and what bytes tokens then stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.tokenizer import Tokenizer
from scaleout.tokenizer.token_bytes import byte_alphabet, byte_reader, spell_bytes

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@given(data=st.binary(max_size=12))
def test_byte_level_spelling_is_reversible(data: bytes) -> None:
    read = byte_reader(BYTE_LEVEL)
    assert read is not None
    assert read(spell_bytes(data)) == data


def test_alphabet_is_the_librarys() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_alphabet()) == set(ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


@pytest.mark.parametrize(
    ("decoder", "spelling", "data"),
    [
        (BYTE_LEVEL, "Ġthere", b" there"),
        (BYTE_LEVEL, "<｜User｜>", "<｜User｜>".encode()),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}, "▁there", b" there"),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]}, "<0xF0>", b"\xf0"),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]}, "<0xF0>▁", b"<0xF0> "),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, "▁a▁b", b" a b"),
        ({"type": "Sequence", "decoders": [BYTE_LEVEL]}, "Ċ", b"\n"),
    ],
)
def test_tokens_are_read_alone(decoder: dict[str, Any], spelling: str, data: bytes) -> None:
    read = byte_reader(decoder)
    assert read is not None
    assert read(spelling) == data


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Sequence", "decoders": [REPLACE, STRIP, FUSE]},
        {"type": "Sequence", "decoders": [BYTE_LEVEL, REPLACE]},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
        {"type": "Sequence", "decoders": []},
    ],
)
def test_other_decoders_need_the_neighbours(decoder: dict[str, Any] | None) -> None:
    assert byte_reader(decoder) is None


def test_bytes_of_tokens_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "Ünïcödé 日本語 🙂👨‍👩‍👧 plain\n\n  text 1234"
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(tokenizer.token_bytes(token_id) or b"" for token_id in ids).decode()
    assert joined.removeprefix(" ") == text


def test_single_tokens(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    qwen, llama = tokenizer_of("qwen3"), tokenizer_of("llama2")
    there = qwen.id_of("Ġthere")
    assert there is not None
    assert (qwen.piece(there), qwen.token_bytes(there)) == ("Ġthere", b" there")
    fallback = llama.id_of("<0xF0>")
    assert fallback is not None
    assert (llama.piece(fallback), llama.token_bytes(fallback)) == ("<0xF0>", b"\xf0")
    end = qwen.id_of("<|im_end|>")
    assert end is not None
    assert qwen.token_bytes(end) == b"<|im_end|>"
    for unknown in (-1, qwen.vocab_size, 1 << 31, 1 << 40):
        assert qwen.piece(unknown) is None
        assert qwen.token_bytes(unknown) is None
    assert qwen.id_of("no such token at all") is None
    assert (
        qwen.decode([there, qwen.vocab_size, 1 << 40, -1, (1 << 63) - 1, there], skip_special_tokens=False)
        == " there there"
    )
