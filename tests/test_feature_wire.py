"""Multimodal features on the wire: the recorded encoding, every rule with its path, and nothing hostile gets through."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.codec import Unfit, dumps, loads
from scaleout.core import Features, Field, GenerateRequest, Json, MediaFeature, Source, Tensor
from scaleout.core.features import Batched, FieldValue, Flat, Shared
from scaleout.errors import InvalidField
from scaleout.feature_wire import ITEM_SIZES, decode_item, encode_item, read_features, write_features
from scaleout.wire import read_generate_request, write_generate_request

msgspec = pytest.importorskip("msgspec")

PIXELS = Tensor("float32", (2, 3), struct.pack("<6f", *range(6)))
RECORDED = {
    "flat": (
        {"pixel_values": Field(PIXELS, Flat([(0, 2, None), (2, 5, None)]))},
        "81ac706978656c5f76616c75657382a46461746193a7666c6f61743332920203c71803"
        "000000000000803f0000004000004040000080400000a040"
        "a56669656c6492a4666c617483ab6b6565705f6f6e5f637075c2a6736c6963657392930002c0930205c0a364696d00",
    ),
    "shared": (
        {"b": Field(Tensor("bfloat16", (), bytes.fromhex("a040")), Shared(2))},
        "81a16282a46461746193a862666c6f6174313690d503a040a56669656c6492a673686172656482ab6b6565705f6f6e5f637075c2aa62617463685f73697a6502",
    ),
}
"""CONTRACT 8.2, as the reference peer wrote it."""


@pytest.mark.parametrize("name", RECORDED)
def test_the_encoding_is_the_recorded_one(name: str) -> None:
    fields, expected = RECORDED[name]
    assert b64decode(encode_item(fields)).hex() == expected
    assert decode_item(b64encode(bytes.fromhex(expected)).decode()) == fields


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)

    def fill(dtype: str, shape: tuple[int, ...]) -> Tensor:
        count = 1
        for length in shape:
            count *= length
        return Tensor(dtype, shape, bytes(i % 251 for i in range(count * ITEM_SIZES[dtype])))

    return st.builds(fill, st.sampled_from(sorted(ITEM_SIZES)), shapes)


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values: st.SearchStrategy[FieldValue] = st.recursive(
    st.none() | numbers | tensors(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
bounds = st.none() | st.integers(-(2**31), 2**31)
slices = st.tuples(bounds, bounds, bounds)
kinds = (
    st.builds(Batched, st.booleans())
    | st.builds(Shared, st.integers(0, 99), st.booleans())
    | st.builds(Flat, st.lists(slices, max_size=3), st.integers(0, 2), st.booleans())
    | st.builds(Flat, st.lists(st.lists(slices, min_size=1, max_size=2), max_size=3), st.integers(1, 2), st.booleans())
)


@given(st.dictionaries(st.text(max_size=5), st.builds(Field, values, kinds), max_size=3))
def test_an_item_comes_back_as_it_was(fields: dict[str, Field]) -> None:
    assert decode_item(encode_item(fields)) == fields


@given(st.binary(max_size=60))
def test_no_bytes_do_worse_than_be_refused(data: bytes) -> None:
    with suppress(Unfit):
        assert isinstance(decode_item(b64encode(data).decode()), dict)


def packed(data: Any, field: Any = ("batched", {"keep_on_cpu": False})) -> str:
    return b64encode(msgspec.msgpack.encode({"x": {"data": data, "field": field}})).decode()


def raw(count: int, code: int = 3) -> Any:
    return msgspec.msgpack.Ext(code, bytes(count))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (5, "valid string"),
        ("?", "base64"),
        ("wQ==", "msgpack"),
        (b64encode(b"\x91" * 5000 + b"\xc0").decode(), "msgpack|map of fields"),
        (b64encode(msgspec.msgpack.encode([1])).decode(), "map of fields"),
        (b64encode(msgspec.msgpack.encode({"x": {"data": 1}})).decode(), "data and field"),
        (packed(["float32", [2], raw(4)]), "4 bytes do not make"),
        (packed(["float32", [2**40, 2**40], raw(4)]), "do not make"),
        (packed(["float32", [-1], raw(4)]), "shape"),
        (packed(["float32", [True], raw(4)]), "shape"),
        (packed(["float32", [1], raw(4, code=1)]), "extension type 1"),
        (packed(["float32", [1], 0]), "tensor should be"),
        (packed(["nn.Module", [1], raw(4)]), "unknown dtype"),
        (packed("text"), "data should be"),
        (packed({"a": 1}), "data should be"),
        (packed([[[[[[[[[1]]]]]]]]]), "data should be"),
        (packed(1, ["pickled", {}]), "field should be"),
        (packed(1, ["batched", {"keep_on_cpu": 1}]), "field should be"),
        (packed(1, ["batched", {"keep_on_cpu": True, "more": 1}]), "field should be"),
        (packed(1, ["shared", {"keep_on_cpu": True, "batch_size": -1}]), "field should be"),
        (packed(1, ["flat", {"keep_on_cpu": True, "slices": [[0, 1]], "dim": 0}]), "slice should be"),
        (packed(1, ["flat", {"keep_on_cpu": True, "slices": [], "dim": 99}]), "dim"),
    ],
)
def test_what_is_no_item_is_refused_with_its_reason(text: Json, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        decode_item(text)


# ---------------------------------------------------------------------------------------------- the features object


def grid(*sizes: int) -> Field:
    return Field(Tensor("int64", (3,), struct.pack("<3q", *sizes)), Batched(keep_on_cpu=True))


def one(modality: str = "image", offset: int = 0, **changes: Any) -> MediaFeature:
    return MediaFeature(modality, f"{modality}{offset}", offset, 2, **changes)


def test_mixed_modalities_name_each_other_in_every_map() -> None:
    """One with metadata, one without: a peer's own render stage fails on that."""
    picture = one(fields={"pixel_values": Field(PIXELS, Flat([(0, 2, None)])), "image_grid_thw": grid(1, 2, 2)})
    sound = one("audio", 2, fields={"input_features": Field(PIXELS, Batched())})
    wire = write_features(Features([picture, sound]))
    assert wire["mm_metadata"].keys() == wire["kwargs_data"].keys() == {"image", "audio"}
    assert wire["mm_metadata"]["audio"] == [None]
    assert decode_item(wire["mm_metadata"]["image"][0]) == {"image_grid_thw": grid(1, 2, 2)}
    assert read_features(loads(dumps(wire)), 4) == Features([picture, sound])


def test_a_request_carries_its_features_through_json() -> None:
    items = [one(fields={"image_grid_thw": grid(1, 2, 2)}), one(offset=2, fields={"image_grid_thw": grid(1, 4, 4)})]
    request = GenerateRequest("r", [5] * 4, features=Features(items))
    assert read_generate_request(loads(dumps(write_generate_request(request)))).features == Features(items)
    plain = loads(dumps(write_generate_request(GenerateRequest("r", [5]))))
    assert plain["features"] is None
    assert read_generate_request(plain).features is None


def test_hashes_and_places_stay_where_the_tensors_are_not_wanted() -> None:
    items = [one(fields={"image_grid_thw": grid(1, 2, 2)})]
    wire = write_features(Features(items, payload="none"))
    assert (wire["kwargs_data"], wire["mm_metadata"]) == (None, None)
    assert read_features(wire, 2) == Features([one()])


def test_files_travel_instead_of_tensors() -> None:
    source = Source(b"\x89PNG", "image/png", {"max_pixels": 9})
    wire = write_features(Features([one(fields={"image_grid_thw": grid(1, 2, 2)}, source=source)], payload="source"))
    assert wire["kwargs_data"] is None
    assert read_features(loads(dumps(wire)), 2) == Features([one(source=source)], payload="source")


def test_metadata_alone_is_for_those_who_get_the_embeddings_elsewhere() -> None:
    wire = write_features(Features([one(fields={"image_grid_thw": grid(1, 2, 2)})]))
    wire["kwargs_data"] = {"image": [None]}
    with pytest.raises(Unfit, match="ec_transfer_params"):
        read_features(wire, 2)
    assert read_features(wire, 2, elsewhere=True) == Features(
        [one(fields={"image_grid_thw": grid(1, 2, 2)}, whole=False)]
    )


def places(*pairs: tuple[int, int]) -> Json:
    return [{"offset": offset, "length": length} for offset, length in pairs]


TWO = {"mm_hashes": {"image": ["a", "b"]}, "mm_placeholders": {"image": places((0, 2), (2, 2))}}


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"mm_hashes": None}, "body.features.mm_hashes", "Field required"),
        ({"mm_hashes": []}, "body.features.mm_hashes", "valid dictionary"),
        ({"mm_hashes": {"image": "ab"}}, "body.features.mm_hashes.image", "valid list"),
        ({"mm_hashes": {"image": ["a", 1]}}, "body.features.mm_hashes.image.1", "valid string"),
        ({"mm_hashes": {"audio": ["a"]}}, "body.features", "mm_hashes and mm_placeholders must use the same"),
        ({"mm_hashes": {"image": ["a"]}}, "body.features", "image mm_hashes and mm_placeholders must have the same"),
        ({"kwargs_data": {}}, "body.features", "kwargs_data must use the same modalities as mm_hashes"),
        ({"mm_metadata": {}}, "body.features", "mm_metadata must use the same modalities as mm_hashes"),
        ({"kwargs_data": {"image": []}}, "body.features", "image kwargs_data and mm_hashes must have the same length"),
        ({"kwargs_data": {"image": [None, "?"]}}, "body.features.kwargs_data.image.1", "base64"),
        ({"mm_sources": {"image": [None, {"data": "?"}]}}, "body.features.mm_sources.image.1.data", "base64"),
        ({"mm_placeholders": {"image": places((0, 2), (1, 2))}}, "body.features", "globally non-overlapping"),
        ({"mm_placeholders": {"image": places((0, 2), (3, 2))}}, "body.features", "remain within the token_ids"),
        ({"mm_placeholders": {"image": [1, 2]}}, "body.features.mm_placeholders.image.0", "valid dictionary"),
        (
            {"mm_placeholders": {"image": places((0, 0), (2, 2))}},
            "body.features.mm_placeholders.image.0.length",
            "than 0",
        ),
        (
            {"mm_placeholders": {"image": places((0, 2), (-1, 2))}},
            "body.features.mm_placeholders.image.1.offset",
            "equal to 0",
        ),
        ({"mm_placeholders": {"image": [{}, {}]}}, "body.features.mm_placeholders.image.0.offset", "Field required"),
    ],
)
def test_each_rule_is_named_by_its_path(change: dict[str, Json], path: str, text: str) -> None:
    with pytest.raises(InvalidField, match=text) as caught:
        read_generate_request({"token_ids": [7] * 4, "sampling_params": {}, "features": {**TWO, **change}})
    assert caught.value.param == path


def test_places_need_not_be_sorted() -> None:
    read = read_features({"mm_hashes": TWO["mm_hashes"], "mm_placeholders": {"image": places((2, 2), (0, 2))}}, 4)
    assert read is not None
    assert [(item.hash, item.offset) for item in read.items] == [("b", 0), ("a", 2)]


def test_no_items_are_no_features() -> None:
    assert read_features({"mm_hashes": {}, "mm_placeholders": {}}, 1) is None
    assert read_features({"mm_hashes": {"image": []}, "mm_placeholders": {"image": []}}, 1) is None
