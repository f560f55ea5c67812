"""Read the metadata of a GGUF file. Knows nothing of tensors, and reads no further than to where they start."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Container
from pathlib import Path
from typing import Any

from attrs import frozen

from scaleout.errors import ConfigError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's value types that are numbers, as struct codes."""

_STRING, _ARRAY = 8, 9
_MAX_KEYS = 1 << 16


@frozen
class ArrayLength:
    """Stands for an array that was not asked for."""

    count: int


def read_gguf(path: Path, arrays: Container[str] = ()) -> dict[str, Any]:
    """The metadata by its keys. Arrays named in `arrays` are read, the others are only counted (ArrayLength).

    Raises ConfigError when the file is no GGUF file, is cut short, or has the other byte order.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Reader(view).metadata(arrays)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ConfigError(f"The GGUF file {path.name} is damaged: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"The GGUF file {path.name} cannot be read: {error}") from None


class _Reader:
    """A place in the file. Little-endian throughout."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = 0

    def metadata(self, arrays: Container[str]) -> dict[str, Any]:
        if self._view[:4] != b"GGUF":
            raise ValueError("it does not start with the letters GGUF")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not known, or it has the other byte order")
        self._number("Q")  # how many tensors
        keys = self._number("Q")
        if keys > _MAX_KEYS:
            raise ValueError(f"it claims to have {keys} keys")
        found: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            kind = self._number("I")
            found[key] = self._array(key in arrays) if kind == _ARRAY else self._scalar(kind)
        return found

    def _number(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._view, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._number("Q")
        start = self._at
        self._at += size
        if self._at > len(self._view):
            raise IndexError("a string runs past the end")
        return self._view[start : self._at].decode()

    def _scalar(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind not in _NUMBERS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._number(_NUMBERS[kind])

    def _array(self, wanted: bool) -> Any:
        kind = self._number("I")
        count = self._number("Q")
        if count > len(self._view):
            raise IndexError("an array runs past the end")
        if kind in _NUMBERS:
            return self._numbers(_NUMBERS[kind], count, wanted)
        if kind != _STRING:
            raise ValueError(f"an array has the type {kind}, which no known key uses")
        return self._strings(count) if wanted else self._skip_strings(count)

    def _numbers(self, code: str, count: int, wanted: bool) -> Any:
        start = self._at
        self._at += count * struct.calcsize("<" + code)
        if self._at > len(self._view):
            raise IndexError("an array runs past the end")
        return list(struct.unpack_from(f"<{count}{code}", self._view, start)) if wanted else ArrayLength(count)

    def _strings(self, count: int) -> list[str]:
        view, at, unpack = self._view, self._at, struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(view, at)[0]
            # Vocabularies may hold tokens that are no UTF-8.
            found.append(view[start:at].decode(errors="replace"))
        self._at = at
        if at > len(view):
            raise IndexError("a string runs past the end")
        return found

    def _skip_strings(self, count: int) -> ArrayLength:
        view, at, unpack = self._view, self._at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(view, at)[0]
        self._at = at
        return ArrayLength(count)
