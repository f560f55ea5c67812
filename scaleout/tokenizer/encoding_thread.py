"""Encoding long new texts in a thread that is replaced from time to time, so that what the fast encoder remembers of them goes with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from scaleout.tokenizer.memory import give_back_freed_memory
from scaleout.tokenizer.tokenizer import Encoded, FastEncode

LONG_TEXT = 32 << 10
"""Characters. The way to another thread and back takes some 80 µs. Shorter texts bring few new words."""

KNOWN = 0.5
"""Share of the last long texts that was remembered from texts before. Above it they bring few new words either: conversations that grow."""

WEIGHT = 1 / 8
"""Of one text in that share."""

REPLACED_AFTER = 8 << 20
"""Characters. A new thread copies the vocabulary's words first, which takes 2 ms: as long as encoding a fiftieth of this. So much text
holds fewer new words than make its table grow, which would take ten times as long."""


class EncodingThread:
    """Encodes as `encode` does. Long new texts are encoded one at a time, in one thread, whoever asks; the caller waits.

    fastokens keeps a table of the words that it has met for each thread that encodes: 17 MB at first, 67 MB and what lies beside it after
    1.4 million different words. Nothing but the end of the thread makes it smaller, and the event loop's own thread never ends.

    `remembered`: bytes of text, counted since the start, whose ids were known from texts before.
    """

    def __init__(self, encode: FastEncode, remembered: Callable[[], int]) -> None:
        self._encode = encode
        self._remembered = remembered
        self._known = 0.0
        self._lock = Lock()
        self._process = 0
        self._thread: ThreadPoolExecutor | None = None
        self._left = 0

    def __call__(self, text: str, add_special_tokens: bool, split_special_tokens: bool) -> Encoded:
        if len(text) < LONG_TEXT:
            return self._encode(text, add_special_tokens, split_special_tokens)
        before = self._remembered()
        encode = self._encode if self._known > KNOWN else self._encode_in_thread
        encoded = encode(text, add_special_tokens, split_special_tokens)
        self._known += ((self._remembered() - before) / len(text) - self._known) * WEIGHT
        return encoded

    def _encode_in_thread(self, text: str, add_special_tokens: bool, split_special_tokens: bool) -> Encoded:
        with self._lock:
            here = self._process == os.getpid()  # threads do not survive a fork
            if self._thread is None or not here or self._left <= 0:
                old, self._thread = self._thread, ThreadPoolExecutor(1, "encode")
                if old is not None and here:
                    old.shutdown(wait=False)
                    self._thread.submit(give_back_freed_memory)  # 1 to 4 ms for some 20 MB of long prompts' remains
                self._process, self._left = os.getpid(), REPLACED_AFTER
            self._left -= len(text)
            done = self._thread.submit(self._encode, text, add_special_tokens, split_special_tokens)
        return done.result()
