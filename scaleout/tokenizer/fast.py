"""A faster encoder with the same ids, used only once it has shown that they are the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from scaleout.errors import ConfigError
from scaleout.tokenizer.check_texts import check_texts
from scaleout.tokenizer.encoding_thread import EncodingThread
from scaleout.tokenizer.memory import give_back_freed_memory
from scaleout.tokenizer.tokenizer import Tokenizer

SEGMENT_CACHE_BYTES = 16 << 20
"""Text between added tokens is remembered with its ids, so that a conversation's next turn costs its new text only. Enough for some
hundred conversations of 14,000 tokens at a time; twice as much would cost 20 MB in every process."""

# One prompt is one task, as for the library: with a thread for each core, each would remember words for itself, in every process.
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")

log = logging.getLogger(__name__)


def speed_up(tokenizer: Tokenizer, corpus: Iterable[str] = ()) -> bool:
    """Switch `tokenizer` to the package fastokens if that encodes everything tried here as the library does.

    `corpus`: texts to try beside the built-in ones, such as what the model's chat template makes. Takes more than a core-second per
    100,000 tokens of vocabulary; other threads may encode meanwhile. Returns whether it switched; `tokenizer.backend_reason` says why
    or why not.
    """
    reason = _find_obstacle(tokenizer, corpus)
    give_back_freed_memory()
    if reason is not None:
        tokenizer.backend_reason = reason
    log.info("Tokenizer backend: %s (%s)", tokenizer.backend, tokenizer.backend_reason)
    return reason is None


def require_fast(tokenizer: Tokenizer, corpus: Iterable[str] = ()) -> None:
    """`speed_up`, for a server that must not run without it. Raises ConfigError with the reason why it cannot."""
    if not speed_up(tokenizer, corpus):
        raise ConfigError(f"The fast tokenizer backend cannot be used: {tokenizer.backend_reason}")


def find_difference(tokenizer: Tokenizer, fast: Any, texts: Iterable[str]) -> str | None:
    """Where `fast` and the library disagree, in words; None when they never do. `fast` may refuse a text, but not answer wrongly."""
    for text in texts:
        for special in (False, True):
            for split in (False, True):
                expected = tokenizer.encode(text, special, split_special_tokens=split)
                try:
                    ids = fast.encode(text, special, split).ids
                except ValueError:
                    continue  # then the library encodes the text, as it will when serving
                if ids != expected:
                    return (
                        f"fastokens gives other ids for {text[:60]!r} (special tokens added: {special}, split: {split})"
                    )
    return None


def _find_obstacle(tokenizer: Tokenizer, corpus: Iterable[str]) -> str | None:
    """Switch `tokenizer`, or say why not."""
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError as error:
        return f"the package fastokens is not installed ({error.name or error})"
    try:
        fast = FastTokenizer.from_json_str(tokenizer.to_json())
    except ValueError as error:
        return f"fastokens cannot read this tokenizer: {error}"
    fast.enable_segment_cache(SEGMENT_CACHE_BYTES)
    difference = find_difference(tokenizer, fast, check_texts(tokenizer.added_tokens.values(), corpus))
    if difference is None:
        encode = EncodingThread(fast.encode, lambda: (fast.segment_cache_stats() or {}).get("hit_bytes", 0))
        tokenizer.use_encoder("fast", encode, "fastokens gives the same ids on every text tried")
    return difference
