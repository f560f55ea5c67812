"""Laws of incremental decoding, on real vocabularies and on small ones of the other kinds."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from scaleout.core import Piece
from scaleout.errors import BadState
from scaleout.tokenizer import (
    DecodeWindow,
    Tokenizer,
    decode_next,
    dump_window,
    flush_window,
    load_window,
    open_window,
)
from scaleout.tokenizer.decode_window import pieces_of
from scaleout.tokenizer.token_bytes import byte_alphabet, spell_bytes
from tests.tokenizer.samples import FAMILIES, TEXTS

SMALL = ("bytes", "wordpiece", "metaspace", "no decoder")
"""Vocabularies made here: the library's other decoders, and bytes that no real vocabulary splits so badly."""

C21_VOCABULARY = {
    10: "20 68 69",
    11: "f0 9f",
    12: "99 82",
    13: "21",
    14: "ec 82",
    15: "bc ea",
    16: "b2 b9 ec",
    17: "82 b4",
}


def byte_vocabulary() -> Tokenizer:
    """The C21 vocabulary, with every single byte behind it and one added token."""
    vocabulary = {f"unused{token_id}": token_id for token_id in range(10)}
    vocabulary |= {spell_bytes(bytes.fromhex(data)): token_id for token_id, data in C21_VOCABULARY.items()}
    letters = [letter for letter in byte_alphabet() if letter not in vocabulary]
    vocabulary |= {letter: 18 + index for index, letter in enumerate(letters)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    library.decoder = decoders.ByteLevel()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.add_tokens([AddedToken("<end>", special=True), AddedToken("<think>", special=False)])
    return Tokenizer(library, fingerprint="bytes")


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "un", "##aff", "##able", "the", "cat", ",", "##s", "日", "本", "##語", "'", "s", "don", "t"]
    library = tokenizers.Tokenizer(models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    library.decoder = decoders.WordPiece(cleanup=False)
    library.add_tokens([AddedToken("[SEP]", special=True)])
    return Tokenizer(library)


def metaspace() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.5), ("s", -2.0), ("▁", -3.0), ("é", -4.0), ("▁日本", -5.0)]
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    library.decoder = decoders.Metaspace()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.add_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(library)


def no_decoder() -> Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    return Tokenizer(library)


@pytest.fixture(scope="session")
def any_tokenizer(tokenizer_of: Callable[[str], Tokenizer]) -> Callable[[str], Tokenizer]:
    made = {"bytes": byte_vocabulary, "wordpiece": wordpiece, "metaspace": metaspace, "no decoder": no_decoder}

    @cache
    def make(name: str) -> Tokenizer:
        return made[name]() if name in made else tokenizer_of(name)

    return make


def decode_in_chunks(
    tokenizer: Tokenizer,
    window: DecodeWindow,
    chunks: Sequence[Sequence[int]],
    *,
    through_json: bool = False,
    flush: bool = True,
) -> tuple[list[Piece], dict[int, int]]:
    """Pieces with neighbouring plain ones joined; and the text length by the number of ids, wherever a step ends before the flush."""
    pieces: list[Piece] = []
    lengths: dict[int, int] = {}
    done = length = 0
    for chunk in chunks:
        if through_json:
            window = load_window(tokenizer, json.loads(json.dumps(dump_window(window))))
        window, steps = decode_next(tokenizer, window, chunk)
        assert sum(ids for _, ids in steps) == len(chunk)
        for step, ids in steps:
            done += ids
            length += len(text_of(step or ()))
            lengths[done] = length
            pieces += step or ()
    pieces += flush_window(tokenizer, window) if flush else []
    return join(pieces), lengths


def join(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and not piece.marker and not joined[-1].marker:
            joined[-1] = Piece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def cut(ids: Sequence[int], marks: Sequence[bool]) -> list[list[int]]:
    chunks: list[list[int]] = [[]]
    for token_id, mark in zip(ids, marks, strict=True):
        if mark:
            chunks.append([])
        chunks[-1].append(token_id)
    return chunks


@pytest.mark.parametrize("name", [*FAMILIES, *SMALL])
@given(data=st.data())
def test_one_text_for_any_chunking(name: str, any_tokenizer: Callable[[str], Tokenizer], data: Any) -> None:
    tokenizer = any_tokenizer(name)
    added = sorted(tokenizer.added_tokens)[:4] or [0]
    token = st.integers(0, tokenizer.vocab_size + 2) | st.sampled_from(added) | st.sampled_from(BYTE_IDS.get(name, [0]))
    ids = data.draw(st.lists(token, max_size=24))
    tail = data.draw(st.lists(token, max_size=8))
    marks = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    window = open_window(tokenizer, tail)
    pieces, lengths = decode_in_chunks(tokenizer, window, [[token_id] for token_id in ids], through_json=True)
    for chunks in ([ids], cut(ids, marks)):
        whole, ends = decode_in_chunks(tokenizer, window, chunks)
        assert whole == pieces
        assert ends.items() <= lengths.items()
    for piece in pieces:
        if piece.marker:
            assert piece.text in tokenizer.added_tokens.values() or piece.text.strip() == ""


BYTE_IDS = {
    "bytes": list(range(10, 18)),
    "llama2": list(range(3, 259)),
    "gemma3": list(range(238, 494)),
    "smollm2": list(range(17, 273)),
    "qwen3": list(range(256)),
    "llama3_1": list(range(256)),
    "gptoss": list(range(256)),
    "deepseek_v3": list(range(3, 259)),
}
"""Ids of single bytes, so that drawn ids hold broken and unfinished characters."""


@pytest.mark.parametrize("name", FAMILIES)
@given(texts=st.lists(st.sampled_from(TEXTS) | st.text(max_size=12), max_size=6))
def test_text_equals_the_librarys_decoder(
    name: str, any_tokenizer: Callable[[str], Tokenizer], texts: list[str]
) -> None:
    tokenizer = any_tokenizer(name)
    ids = tokenizer.encode("".join(texts), add_special_tokens=False)
    # In the middle of a text: what the library adds to a prompt when the ids follow it.
    prompt = tokenizer.encode("prompt:", add_special_tokens=False)
    expected = tokenizer.decode([*prompt, *ids], False).removeprefix(tokenizer.decode(prompt, False))
    window = open_window(tokenizer, prompt)
    pieces, _ = decode_in_chunks(tokenizer, window, [[token_id] for token_id in ids])
    assert text_of(pieces) == expected
    assert [piece.special for piece in pieces if piece.marker] == [
        token_id in tokenizer.special_ids for token_id in ids if token_id in tokenizer.added_tokens
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_added_token_is_a_marker(name: str, any_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = any_tokenizer(name)
    for token_id, content in tokenizer.added_tokens.items():
        text = content.replace("▁", " ") if name == "gemma3" else content
        assert decode_next(tokenizer, DecodeWindow(), [token_id])[1] == [
            ([Piece(text, True, token_id in tokenizer.special_ids)], 1)
        ]


def test_c21_multi_byte_characters_over_chunks(shared_folder: Path) -> None:
    section = (shared_folder / "cases" / "CASES.md").read_text().split("## C21 ")[1].split("\n## ")[0]
    vocabulary, runs = map(json.loads, re.findall(r"```json\n(.*?)```", section, re.DOTALL))
    assert {int(token_id): data for token_id, data in vocabulary.items()} == C21_VOCABULARY
    tokenizer = byte_vocabulary()
    for run in runs:
        window = open_window(tokenizer, [])
        deltas: list[str | None] = []
        for token_id in run["ids"]:
            window, steps = decode_next(tokenizer, window, [token_id])
            deltas.append(text_of(pieces_of(steps)) or None)
        last = text_of(flush_window(tokenizer, window))
        if run.get("finish") == "length":  # the final event carries what was held back
            deltas[-1] = (deltas[-1] or "") + last or None
        else:
            assert last == ""
        assert deltas == run["deltas"]
        assert text_of(decode_in_chunks(tokenizer, open_window(tokenizer, []), [run["ids"]])[0]) == run["text"]


def test_a_character_cut_by_a_marker_is_replaced_before_it() -> None:
    tokenizer = byte_vocabulary()
    end = tokenizer.id_of("<end>")
    assert end is not None
    window, steps = decode_next(tokenizer, open_window(tokenizer, []), [10, 11, end, 12])
    assert steps == [([Piece(" hi\ufffd")], 2), ([Piece("<end>", True, True)], 1), ([Piece("\ufffd\ufffd")], 1)]
    window, steps = decode_next(tokenizer, open_window(tokenizer, []), [10, 11])
    assert steps == [([Piece(" hi")], 2)]
    assert decode_next(tokenizer, window, [end])[1] == [([Piece("\ufffd")], 0), ([Piece("<end>", True, True)], 1)]


@pytest.mark.parametrize("name", ["bytes", "wordpiece", "qwen3"])
@given(data=st.data())
def test_silent_ids_are_passed_over(name: str, any_tokenizer: Callable[[str], Tokenizer], data: Any) -> None:
    tokenizer = any_tokenizer(name)
    token = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(sorted(tokenizer.added_tokens))
    ids = data.draw(st.lists(token | st.sampled_from(BYTE_IDS.get(name, [0])), max_size=16))
    silent = frozenset(data.draw(st.lists(st.sampled_from(ids), max_size=3)) if ids else ())
    window = open_window(tokenizer, [])
    after, steps = decode_next(tokenizer, window, ids, silent)
    told = [one for pieces, count in steps for one in [pieces is None] * count]
    assert told == [one in silent for one in ids]
    spoken = [one for one in ids if one not in silent]
    assert after == decode_next(tokenizer, window, spoken)[0]
    assert join(pieces_of(steps)) == decode_in_chunks(tokenizer, window, [spoken], flush=False)[0]


def test_a_prompt_that_ends_within_a_character_is_continued() -> None:
    tokenizer = byte_vocabulary()
    window = open_window(tokenizer, [10, 11])
    assert window.pending == b"\xf0\x9f"
    assert text_of(pieces_of(decode_next(tokenizer, window, [12, 13])[1])) == "🙂!"
    assert open_window(tokenizer, [11, 12]) == DecodeWindow()


@pytest.mark.parametrize("name", ["llama2", "gemma3", "metaspace"])
def test_a_leading_space_is_kept(name: str, any_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = any_tokenizer(name)
    token_id = tokenizer.id_of("▁the")
    assert token_id is not None
    for tail in ([], [token_id]):
        assert text_of(pieces_of(decode_next(tokenizer, open_window(tokenizer, tail), [token_id])[1])) == " the"


def test_word_pieces_join_their_neighbours(any_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = any_tokenizer("wordpiece")
    spellings = ["the", "un", "##aff", "##able", ",", "cat", "##s"]
    ids = [token_id for word in spellings if (token_id := tokenizer.id_of(word)) is not None]
    pieces, lengths = decode_in_chunks(tokenizer, open_window(tokenizer, []), [[token_id] for token_id in ids])
    assert text_of(pieces) == tokenizer.decode(ids, False) == "the unaffable , cats"
    assert [*lengths.values()] == [3, 6, 9, 13, 15, 19, 20]


@pytest.mark.parametrize("name", ["bytes", "wordpiece", "qwen3"])
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from(["", "f0", "f09f", "e282", "zz", "F0"]),
        lambda inner: st.lists(inner, max_size=16) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=16,
    )
)
def test_a_foreign_window_is_refused_or_harmless(
    name: str, any_tokenizer: Callable[[str], Tokenizer], value: Any
) -> None:
    tokenizer = any_tokenizer(name)
    try:
        window = load_window(tokenizer, value)
    except BadState:
        return
    assert dump_window(window) == value
    decode_in_chunks(tokenizer, window, [[3, 4], [5]])


@pytest.mark.parametrize("value", ["f09f98", "e2", "c3"])
def test_a_window_goes_through_json(value: str) -> None:
    assert dump_window(load_window(byte_vocabulary(), value)) == value


@pytest.mark.parametrize("value", [None, 1, "0", "41", "f09f9882", "8282", [0], [1, 2], {"pending": ""}, "ff", "F09F"])
def test_a_damaged_window_is_refused(value: Any) -> None:
    with pytest.raises(BadState):
        load_window(byte_vocabulary(), value)


@pytest.mark.parametrize("value", [[2, 1], [0, -1], [0, 99], [True, 1], [0, *[1] * 20], "f09f", [0, 1.5], ["0", 1], []])
def test_a_damaged_window_of_ids_is_refused(value: Any) -> None:
    with pytest.raises(BadState):
        load_window(wordpiece(), value)


def test_work_per_id_does_not_grow(any_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = any_tokenizer("qwen3")
    ids = tokenizer.encode(" ".join(TEXTS) * 30, add_special_tokens=False)[:4000]

    def spend(part: Sequence[int]) -> float:
        window = open_window(tokenizer, [])
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for token_id in part:
                window, _ = decode_next(tokenizer, window, [token_id])
            best = min(best, time.perf_counter() - start)
        assert len(json.dumps(dump_window(window))) < 20
        return best

    spend(ids)
    assert spend(ids[-1000:]) < 3 * spend(ids[:1000]) + 0.002
