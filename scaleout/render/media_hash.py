"""Names for media by content: the reference peer's digests, so that caches of both kinds of servers agree (CONTRACT 8.3).

Every piece is framed by its length and every container by its kind, so that no two inputs give the same stream of bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

_NONE, _SEQUENCE, _MAPPING, _LEAF = b"\x00", b"\x01", b"\x02", b"\x03"

ALGORITHMS = ("blake3", "sha256", "sha512")


@frozen
class Tagged:
    """A value under a word that says what it is, such as the bytes of a picture under `image`."""

    tag: str
    value: Any


def new_hasher(algorithm: str) -> Callable[[], Any]:
    """Raises `ImportError` where blake3 is asked for and not installed."""
    if algorithm == "blake3":
        from blake3 import blake3

        return blake3
    return {"sha256": hashlib.sha256, "sha512": hashlib.sha512}[algorithm]


def digest(algorithm: str, values: Mapping[str, Any]) -> str:
    """The hexadecimal digest of named values, whatever their order."""
    hasher = new_hasher(algorithm)()
    for key in sorted(values):
        for piece in _item(key, values[key]):
            hasher.update(piece)
    return str(hasher.hexdigest())


def _frame(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    yield struct.pack("<Q", size)
    yield data


def _item(key: str, value: Any) -> Iterator[bytes | memoryview]:
    yield from _frame(key.encode())
    yield from _value(value)


def _value(value: Any) -> Iterator[bytes | memoryview]:
    if value is None:
        yield _NONE
    elif isinstance(value, list | tuple):
        yield _SEQUENCE
        yield struct.pack("<Q", len(value))
        for one in value:
            yield from _value(one)
    elif isinstance(value, dict):
        yield _MAPPING
        yield struct.pack("<Q", len(value))
        for key, one in value.items():
            yield from _item(str(key), one)
    else:
        yield _LEAF
        yield from _leaf(value)


def _leaf(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, bytes | memoryview):
        return _frame(value)
    if isinstance(value, str):
        return _frame(value.encode())
    if isinstance(value, bool):
        return _frame(struct.pack("<?", value))
    if isinstance(value, int):
        return _frame(struct.pack("<q", value))
    if isinstance(value, float):
        return _frame(struct.pack("<d", value))
    if isinstance(value, Tagged):
        return _item(value.tag, value.value)
    return _item("ndarray", {"dtype": value.dtype.str, "shape": value.shape, "data": _raw(value)})


def _raw(array: Any) -> Any:
    """An array's bytes; a scalar array counts as its number."""
    return array.item() if array.ndim == 0 else array.tobytes()
