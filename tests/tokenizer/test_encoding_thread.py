"""Long new texts: encoded in a thread that ends, with the words that the fast encoder remembers of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaleout.tokenizer import Tokenizer, encoding_thread, load_model_files, load_tokenizer
from scaleout.tokenizer.encoding_thread import KNOWN, LONG_TEXT, EncodingThread
from tests.tokenizer.samples import TEXTS

pytest.importorskip("fastokens")


class Told:
    """What an encoder gives back: here who encoded, as a number."""

    def __init__(self) -> None:
        self.ids = [threading.get_ident()]


def encode(text: str, add_special_tokens: bool, split_special_tokens: bool) -> Told:
    if text.startswith("?"):
        raise ValueError("a byte that the vocabulary lacks")
    return Told()


def who(encoder: EncodingThread, text: str) -> int:
    return encoder(text, False, False).ids[0]


def test_only_long_texts_leave_the_callers_thread() -> None:
    encoder = EncodingThread(encode, lambda: 0)
    here = threading.get_ident()
    assert who(encoder, "a" * (LONG_TEXT - 1)) == here
    there = who(encoder, "a" * LONG_TEXT)
    assert there != here
    with ThreadPoolExecutor(4) as callers:
        assert set(callers.map(lambda _: who(encoder, "a" * LONG_TEXT), range(20))) == {there}


def test_the_thread_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_thread, "REPLACED_AFTER", 3 * LONG_TEXT)
    encoder = EncodingThread(encode, lambda: 0)
    threads = []
    for _ in range(7):
        encoder("a" * LONG_TEXT, False, False)
        (working,) = [one for one in threading.enumerate() if one is encoder_thread(encoder)]
        threads.append(working)
    assert [threads.index(one) for one in threads] == [0, 0, 0, 3, 3, 3, 6]
    for ended in threads[:6]:
        ended.join(10)
        assert not ended.is_alive()


def encoder_thread(encoder: EncodingThread) -> threading.Thread:
    assert encoder._thread is not None
    (thread,) = encoder._thread._threads
    return thread


def test_what_is_remembered_stays_in_the_callers_thread() -> None:
    remembered = 0
    encoder = EncodingThread(lambda *_: grow(), lambda: remembered)

    def grow() -> Told:
        nonlocal remembered
        remembered += share
        return Told()

    here = threading.get_ident()
    share = LONG_TEXT  # everything
    seen = [who(encoder, "a" * LONG_TEXT) == here for _ in range(20)]
    assert not seen[0]
    assert seen == sorted(seen)
    assert seen[-1]
    share = int(LONG_TEXT * KNOWN / 4)
    seen = [who(encoder, "a" * LONG_TEXT) == here for _ in range(20)]
    assert not seen[-1]


def test_what_goes_wrong_there_is_raised_here() -> None:
    encoder = EncodingThread(encode, lambda: 0)
    with pytest.raises(ValueError, match="lacks"):
        encoder("?" * LONG_TEXT, False, False)
    assert encoder("a" * LONG_TEXT, False, False).ids


@pytest.mark.parametrize("family", ["smollm2", "qwen3"])
def test_same_ids_of_long_texts(
    family: str, folder_of: Callable[[str], Path], tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    fast = load_tokenizer(load_model_files(str(folder_of(family))), backend="fast")
    slow = tokenizer_of(family)
    text = " ".join(TEXTS)
    text *= 1 + 2 * LONG_TEXT // len(text)
    for prompt in (text, f"<|im_start|>user\n{text}<|im_end|>\n", text[:LONG_TEXT]):
        for special in (True, False):
            for split in (True, False):
                expected = slow.encode(prompt, special, split_special_tokens=split)
                assert fast.encode(prompt, special, split_special_tokens=split) == expected


MANY_WORDS = """
import itertools, json, os, sys
from scaleout.tokenizer import load_model_files, load_tokenizer
from scaleout.tokenizer.memory import give_back_freed_memory
tokenizer = load_tokenizer(load_model_files(sys.argv[1]), backend="fast")
def resident():
    give_back_freed_memory()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
words = map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=5))
tokenizer.encode("word " * 10_000, False)
before = resident()
for _ in range(290):
    tokenizer.encode(" ".join(itertools.islice(words, 10_000)), False)
print(json.dumps(resident() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory")
def test_millions_of_words_are_forgotten(folder_of: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", MANY_WORDS, str(folder_of("smollm2"))]
    done = subprocess.run(command, timeout=120, check=True, capture_output=True, text=True)
    # Kept in one thread they take 70 MB.
    assert json.loads(done.stdout) < 35
