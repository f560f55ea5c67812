"""What numba keeps on disk of this package's loops: whether it is of these sources, and whether all of it is there."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba import njit

_binding: Any = binding


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _read_sources() -> str:
    return _digest(*(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


SOURCES = _read_sources()
"""Of all modules of this package. numba looks at a function's own file alone, and would go on with what it was inlined from."""


def note_for(kind: str) -> Path | None:
    """A file that is there when all loops for this kind of number are kept, for this processor. None where nothing can be kept."""
    try:
        folder = njit(cache=True)(_anything).stats.cache_path
    except RuntimeError:
        return None
    if folder is None:
        return None
    processor = f"{_binding.get_host_cpu_name()} {_binding.get_host_cpu_features().flatten()}"
    made_by = f"{sys.version} {numba.__version__} {processor}"
    return Path(folder) / f"{kind}-{_digest(SOURCES.encode(), made_by.encode())}.complete"


def _anything() -> None:
    """For numba to say where it would keep it."""
