"""Multimodal features on the wire (CONTRACT 8.1, 8.2): `features` of a GenerateRequest, and each item as base64 of one msgpack value.

The encoding is the reference peer's: its engine reads what is written here, and the other way round. Beyond it there is `mm_sources`,
which carries the files themselves where a client asked for that; an engine of another kind passes over the key.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scaleout import codec
from scaleout.codec import Unfit, expect_list, read_int, read_object, read_str
from scaleout.core import Json
from scaleout.core.features import (
    Batched,
    Features,
    Field,
    FieldKind,
    FieldValue,
    Flat,
    MediaFeature,
    Shared,
    Slice,
    Source,
    Tensor,
)
from scaleout.errors import NotSupported

ITEM_SIZES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
"""Bytes of one element, by torch's name of its kind. Other kinds are refused."""

RAW = 3
"""The extension type of a tensor's bytes. 1 and 2 are pickles in the peer's world and are never read here."""
MAX_DEPTH = 8
"""Lists in lists. Real fields have one or two: pictures of an item, crops of a picture."""
MAX_DIMS = 16
MAX_ITEMS = 16_384
"""Items of one modality in a prompt. Each takes at least one token."""


def _msgpack() -> Any:
    try:
        import msgspec
    except ImportError:
        raise NotSupported(
            "Multimodal features need the extra [multimodal]: pip install 'scaleout[multimodal]'", "features"
        ) from None
    return msgspec


# ---------------------------------------------------------------------------------------------- one item


def encode_item(fields: Mapping[str, Field]) -> str:
    """An item's fields as text. Raises `NotSupported` where msgspec is not installed."""
    msgspec = _msgpack()
    ext = msgspec.msgpack.Ext
    wire = {name: {"data": _write_value(one.data, ext), "field": _write_kind(one.kind)} for name, one in fields.items()}
    return b64encode(msgspec.msgpack.encode(wire)).decode("ascii")


def _write_value(value: FieldValue, ext: Any) -> Any:
    if isinstance(value, Tensor):
        return [value.dtype, value.shape, ext(RAW, value.data)]
    if isinstance(value, list):
        return [_write_value(one, ext) for one in value]
    return value


def _write_kind(kind: FieldKind) -> Any:
    match kind:
        case Batched(keep):
            return ["batched", {"keep_on_cpu": keep}]
        case Shared(size, keep):
            return ["shared", {"keep_on_cpu": keep, "batch_size": size}]
        case Flat(slices, dim, keep):
            return ["flat", {"keep_on_cpu": keep, "slices": slices, "dim": dim}]


def decode_item(text: Json) -> dict[str, Field]:
    """The inverse of `encode_item`, for text of any origin. The tensors share the decoded buffer. Raises `Unfit`."""
    msgspec = _msgpack()
    try:
        packed = b64decode(read_str(text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit(f"Input should be base64: {error}") from None
    try:
        wire = msgspec.msgpack.decode(packed, ext_hook=_read_ext)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Unfit(f"Input should be base64 of one msgpack value: {error}") from None
    if not isinstance(wire, dict):
        raise Unfit("Input should hold a map of fields")
    fields = {}
    for name, one in wire.items():
        if not isinstance(name, str) or not isinstance(one, dict) or one.keys() != {"data", "field"}:
            raise Unfit("Input should hold a map of fields, each with data and field")
        try:
            fields[name] = Field(_read_value(one["data"], MAX_DEPTH), _read_kind(one["field"]))
        except Unfit as error:
            raise Unfit(f"{name}: {error}") from None
    return fields


class _Raw:
    """A tensor's bytes, told apart from everything that a message can hold otherwise."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data


def _read_ext(code: int, data: memoryview) -> _Raw:
    if code != RAW:
        raise ValueError(f"extension type {code} is not accepted")
    return _Raw(data)


def _read_value(value: Any, depth: int) -> FieldValue:
    if value is None or type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if type(value) is not list or not depth:
        raise Unfit("data should be a tensor, a number, or a list of these")
    if value and isinstance(value[0], str):
        return _read_tensor(value)
    return [_read_value(one, depth - 1) for one in value]


def _read_tensor(value: list[Any]) -> Tensor:
    if len(value) != 3 or not isinstance(value[1], list) or not isinstance(value[2], _Raw):
        raise Unfit("a tensor should be [dtype, shape, bytes]")
    dtype, shape, raw = value
    size = ITEM_SIZES.get(dtype)
    if size is None:
        raise Unfit(f"unknown dtype {dtype[:40]!r}")
    if len(shape) > MAX_DIMS or not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        raise Unfit("a shape should be a list of lengths")
    if math.prod(shape) * size != raw.data.nbytes:
        raise Unfit(f"{raw.data.nbytes} bytes do not make a tensor of the shape {shape} and dtype {dtype}")
    return Tensor(dtype, tuple(shape), raw.data)


def _read_kind(value: Any) -> FieldKind:
    match value:
        case ["batched", {"keep_on_cpu": bool(keep), **rest}] if not rest:
            return Batched(keep)
        case ["shared", {"keep_on_cpu": bool(keep), "batch_size": int(size), **rest}] if not rest and size >= 0:
            return Shared(size, keep)
        case ["flat", {"keep_on_cpu": bool(keep), "slices": list(slices), "dim": int(dim), **rest}] if not rest:
            if not -MAX_DIMS <= dim < MAX_DIMS:
                raise Unfit("dim is out of range")
            read = [_read_slices(one) for one in slices]
            return Flat(read, dim, keep)
    raise Unfit("field should be ['batched' | 'shared' | 'flat', its arguments]")


def _read_slices(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, list) for one in value):
        return [_read_slice(one) for one in value]
    return _read_slice(value)


def _read_slice(value: Any) -> Slice:
    if isinstance(value, list) and len(value) == 3 and all(one is None or type(one) is int for one in value):
        return value[0], value[1], value[2]
    raise Unfit("a slice should be [start, stop, step]")


# ---------------------------------------------------------------------------------------------- the features object


def write_features(features: Features) -> dict[str, Json]:
    """`features` as its payload asks. Every modality is named in every map, with nulls where an item has nothing to tell."""
    by_modality: dict[str, list[MediaFeature]] = {}
    for item in features.items:
        by_modality.setdefault(item.modality, []).append(item)
    wire: dict[str, Json] = {
        "mm_hashes": {name: [item.hash for item in items] for name, items in by_modality.items()},
        "mm_placeholders": {
            name: [{"offset": item.offset, "length": item.length} for item in items]
            for name, items in by_modality.items()
        },
        "kwargs_data": None,
        "mm_metadata": None,
    }
    if features.payload == "tensors":
        full = {n: [_pack(i.fields if i.whole else None) for i in items] for n, items in by_modality.items()}
        small = {n: [_pack(_metadata(i.fields)) for i in items] for n, items in by_modality.items()}
        wire["kwargs_data"] = full
        if any(one is not None for items in small.values() for one in items):
            wire["mm_metadata"] = small
    if features.payload == "source":
        wire["mm_sources"] = {name: [_write_source(i.source) for i in items] for name, items in by_modality.items()}
    return wire


def _pack(fields: Mapping[str, Field] | None) -> str | None:
    return encode_item(fields) if fields else None


def _metadata(fields: Mapping[str, Field] | None) -> dict[str, Field]:
    """What a worker needs that gets the embeddings from elsewhere: the fields that stay on the CPU."""
    return {name: one for name, one in (fields or {}).items() if one.kind.keep_on_cpu}


def _write_source(source: Source | None) -> Json:
    if source is None:
        return None
    wire: dict[str, Json] = {"data": b64encode(source.data).decode("ascii"), "media_type": source.media_type}
    if source.processor_kwargs:
        wire["processor_kwargs"] = source.processor_kwargs
    return wire


def read_features(value: Json, tokens: int, *, elsewhere: bool = False) -> Features | None:
    """The features of a prompt of `tokens` ids; None where there are no items. Raises `Unfit` with the path below `features`.

    `elsewhere`: the embeddings come over a connector (`ec_transfer_params`), so metadata alone is enough.
    """
    given = read_object(value)
    hashes = _read_lists(given, "mm_hashes")
    places = _read_lists(given, "mm_placeholders")
    if hashes.keys() != places.keys():
        raise Unfit("Value error, mm_hashes and mm_placeholders must use the same modalities")
    optional = {}
    for name in ("kwargs_data", "mm_metadata", "mm_sources"):
        if given.get(name) is not None:
            optional[name] = _read_lists(given, name)
            if optional[name].keys() != hashes.keys():
                raise Unfit(f"Value error, {name} must use the same modalities as mm_hashes")
    for modality, own in hashes.items():
        if len(places[modality]) != len(own):
            raise Unfit(f"Value error, {modality} mm_hashes and mm_placeholders must have the same length")
        for name, lists in optional.items():
            if len(lists[modality]) != len(own):
                raise Unfit(f"Value error, {modality} {name} and mm_hashes must have the same length")
        if len(own) > MAX_ITEMS:
            raise Unfit(f"List should have at most {MAX_ITEMS} items", f".mm_hashes.{modality}")
    spans = {m: [_read_place(one, f".mm_placeholders.{m}.{i}") for i, one in enumerate(places[m])] for m in hashes}
    _check_places(spans, tokens)
    items = []
    for modality, own in hashes.items():
        for i, digest in enumerate(own):
            if not isinstance(digest, str) or not digest:
                raise Unfit("Input should be a valid string", f".mm_hashes.{modality}.{i}")
            offset, length = spans[modality][i]
            entries = {name: lists[modality][i] for name, lists in optional.items()}
            items.append(_read_item(modality, digest, offset, length, entries, f"{modality}.{i}", elsewhere))
    if not items:
        return None
    payload: Literal["tensors", "source"] = "source" if any(item.source for item in items) else "tensors"
    return Features(sorted(items, key=lambda item: item.offset), payload)


def _read_item(
    modality: str, digest: str, offset: int, length: int, entries: Mapping[str, Json], at: str, elsewhere: bool
) -> MediaFeature:
    read: dict[str, Any] = {}
    for name, entry in entries.items():
        if entry is not None:
            try:
                read[name] = _read_source(entry) if name == "mm_sources" else decode_item(entry)
            except Unfit as error:
                raise Unfit(str(error), f".{name}.{at}{error.path}") from None
    full, small = read.get("kwargs_data"), read.get("mm_metadata")
    source = read.get("mm_sources")
    if full is None and small is not None and source is None and not elsewhere:
        raise Unfit("Value error, metadata-only multimodal items require ec_transfer_params.")
    fields = None if full is None and small is None else {**(full or {}), **(small or {})}
    whole = full is not None or small is None
    return MediaFeature(modality, digest, offset, length, fields, source, whole)


def _read_source(value: Json) -> Source:
    given = read_object(value)
    media_type, kwargs = given.get("media_type"), given.get("processor_kwargs")
    try:
        data = b64decode(read_str(given.get("data")), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit(f"Input should be base64: {error}", ".data") from None
    if media_type is not None and not isinstance(media_type, str):
        raise Unfit("Input should be a valid string", ".media_type")
    return Source(data, media_type, {} if kwargs is None else read_object(kwargs))


def _read_lists(given: Mapping[str, Json], name: str) -> dict[str, list[Json]]:
    """A map from modality to list."""
    try:
        lists = read_object(given.get(name))
    except Unfit as error:
        raise Unfit("Field required" if given.get(name) is None else str(error), f".{name}") from None
    return {modality: expect_list(one, f".{name}.{modality}") for modality, one in lists.items()}


def _read_place(value: Json, at: str) -> tuple[int, int]:
    if not isinstance(value, dict):
        raise Unfit("Input should be a valid dictionary", at)
    numbers = []
    for key, least in (("offset", 0), ("length", 1)):
        try:
            number = read_int(value.get(key))
        except Unfit as error:
            raise Unfit("Field required" if value.get(key) is None else str(error), f"{at}.{key}") from None
        if number < least:
            bound = "greater than or equal to 0" if least == 0 else "greater than 0"
            raise Unfit(f"Input should be {bound}", f"{at}.{key}")
        numbers.append(number)
    return numbers[0], numbers[1]


def _check_places(spans: Mapping[str, Sequence[tuple[int, int]]], tokens: int) -> None:
    end = 0
    for offset, length in sorted(place for places in spans.values() for place in places):
        if offset < end:
            raise Unfit("Value error, mm_placeholders must be globally non-overlapping and sorted")
        end = offset + length
    if end > tokens:
        raise Unfit("Value error, mm_placeholders must remain within the token_ids sequence")


codec.accept(Features | None, lambda value, _: value)  # read above, where the number of ids is known
