"""Return to the system what loading a vocabulary used and freed."""

from __future__ import annotations

import sys


def give_back_freed_memory() -> None:
    """Parsing a large tokenizer.json leaves tens of MB of freed memory in the C library, which would stay for the server's life."""
    if sys.platform != "linux":
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(0)
