"""What the C library does with memory that is freed: vocabularies and long prompts use much of it for a short time."""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8
"""glibc's number for it."""


def share_one_heap() -> None:
    """Let all threads of this process take memory from one heap, before any of them has begun one of its own: each would keep what its
    work used (20 MB after the start). There are few threads, and Python lets one run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """To the system: what parsing a large tokenizer.json or many steps of an engine left freed in the C library would stay for good."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(0)
