"""Features as they travel → tensors as a model takes them. Knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from scaleout.core.features import Batched, Field, FieldValue, Flat
from scaleout.core.features import Tensor as Array


def content_key(name: str, fields: Mapping[str, Field]) -> bytes:
    """Names contents: equal keys only for equal names and equal fields. A gigabyte takes about a second."""
    digest = blake2b(digest_size=16)
    _add(digest, name)
    for field_name in sorted(fields):
        _add(digest, f"{field_name} {type(fields[field_name].kind).__name__}")
        _add_value(digest, fields[field_name].data)
    return digest.digest()


def _add(digest: Any, text: str) -> None:
    part = text.encode()
    digest.update(len(part).to_bytes(8, "little") + part)


def _add_value(digest: Any, value: FieldValue) -> None:
    if isinstance(value, Array):
        _add(digest, f"{value.dtype} {value.shape}")
        digest.update(value.data)
    elif isinstance(value, list):
        _add(digest, f"list {len(value)}")
        for one in value:
            _add_value(digest, one)
    else:
        _add(digest, repr(value))


def to_tensor(array: Array) -> Tensor:
    """A copy in memory of its own."""
    dtype: torch.dtype = getattr(torch, array.dtype)
    if 0 in array.shape:
        return torch.empty(array.shape, dtype=dtype)
    # Not read as bool: a byte that is neither 0 nor 1 would be neither true nor false.
    raw = torch.frombuffer(bytearray(array.data), dtype=torch.uint8 if dtype is torch.bool else dtype)
    return (raw != 0 if dtype is torch.bool else raw).reshape(array.shape)


def alone_in_batch(field: Field) -> Any:
    """A field as it is in a batch of this one item. Raises ValueError where parts of unequal shape cannot be put together."""
    value = _value(field.data)
    if isinstance(value, list):
        if not value or not all(isinstance(one, Tensor) for one in value):
            raise ValueError("a field holds a list of something else than tensors")
        if isinstance(field.kind, Flat):
            return torch.cat(value, dim=field.kind.dim)
        if any(one.shape != value[0].shape for one in value):
            raise ValueError("the parts of a field differ in shape")
        value = torch.stack(value)
    if isinstance(field.kind, Batched):
        return value.unsqueeze(0) if isinstance(value, Tensor) else torch.tensor([value])
    return value


def _value(data: FieldValue) -> Any:
    if isinstance(data, Array):
        return to_tensor(data)
    return [_value(one) for one in data] if isinstance(data, list) else data


def joined(fields: Iterable[Field]) -> Tensor:
    """One field of several items in a row, on the batch axis. Raises ValueError, RuntimeError."""
    return torch.cat([torch.as_tensor(alone_in_batch(field)) for field in fields])


def numbers(field: Field | None, count: int) -> Sequence[int] | None:
    """A field that holds `count` whole numbers; None where it is something else."""
    if field is None or not isinstance(field.data, Array) or field.data.dtype not in ("int64", "int32"):
        return None
    found = to_tensor(field.data).flatten().tolist()
    return found if len(found) == count else None
