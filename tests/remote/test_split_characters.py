"""Bytes of characters that take several tokens are spelled as the tokenizer would."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.generate.remote.split_characters import SplitCharacters
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return load_tokenizer(load_model_files(str(smollm2_folder)))


@pytest.fixture(scope="module")
def split(tokenizer: Tokenizer) -> SplitCharacters:
    found = SplitCharacters(tokenizer.vocab_size, tokenizer.token_bytes)
    found.load()
    return found


@given(text=st.text("🙂👍🏽𐍈日本語한ผ é", min_size=1, max_size=6))
def test_what_lies_before_a_character_s_last_token_is_found_again(
    tokenizer: Tokenizer, split: SplitCharacters, text: str
) -> None:
    ids = tokenizer.encode(text, False)
    held: list[int] = []
    for token in ids:
        data = tokenizer.token_bytes(token) or b""
        held.append(token)
        so_far = b"".join(tokenizer.token_bytes(one) or b"" for one in held)
        try:
            so_far.decode()
        except UnicodeDecodeError:
            continue
        before = so_far[: len(so_far) - len(data)]
        found = split.spell(before, len(held) - 1)
        assert found is not None
        assert b"".join(tokenizer.token_bytes(one) or b"" for one in found) == before
        assert len(found) == len(held) - 1
        held = []


def test_what_cannot_be_spelled_is_none(split: SplitCharacters) -> None:
    assert split.spell(b"plain text", 2) is None
    assert split.spell(b"\xf0\x9f", 9) is None
    assert split.spell(b"", 0) == []
