"""Names of media: the reference peer's digests, as it made them itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.render.media_hash import Tagged, digest

pytest.importorskip("blake3")

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000030000000208060000009d74661a0000001349444154789c636464624e61800226062400000974"
    "006e0003a74c0000000049454e44ae426082"
)
"""3 x 2, RGBA (1, 2, 3, 100)."""
WHITE = {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)}


def test_a_picture_whose_colours_were_changed_is_named_with_the_change() -> None:
    value = Tagged("image", {"io_config": WHITE, "data": PNG})
    expected = "030b8e66d72ed1de1d3f6864a87e864c747752201db896d83ad0fc675e7d7698"
    assert digest("blake3", {"model_id": "m", "image": value}) == expected


def test_arguments_of_a_request_are_part_of_the_name() -> None:
    value = Tagged("image", {"io_config": WHITE, "data": PNG})
    extras = {
        "mm_processor_kwargs": {"max_pixels": 5, "a": 1.5, "t": True},
        "media_io_kwargs": {"image": {"image_mode": "RGB"}},
    }
    expected = "d1e32fc707baaa244c2e78c30811abc77123f9d5efef3d2f20d6cdd22e4bb1e6"
    assert digest("blake3", {"model_id": "m", "image": value, **extras}) == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("blake3", "f4206c3123aec6084f11f0a3a181f64daa3c12bba57d61e65e3283c597b79e31"),
        ("sha256", "4a854289f5c19aeaa5d183997b290c46dd7fda9c773f0fe321246fb06820ef06"),
    ],
)
def test_a_picture_without_a_file_is_named_by_its_pixels(algorithm: str, expected: str) -> None:
    """CONTRACT 8.3: 2 x 2, RGB (1, 2, 3)."""
    numpy = pytest.importorskip("numpy")
    pixels = numpy.full((2, 2, 3), (1, 2, 3), "uint8")
    value = Tagged("image", {"mode": "RGB", "data": pixels})
    assert digest(algorithm, {"model_id": "m", "image": value}) == expected


def test_a_picture_from_a_file_is_named_by_its_bytes() -> None:
    """CONTRACT 8.3, the same picture as the 79 bytes of a PNG file."""
    image = pytest.importorskip("PIL.Image")
    from media_files import file_of

    data = file_of(image.new("RGB", (2, 2), (1, 2, 3)))
    if len(data) != 79:
        pytest.skip("this zlib packs the file differently")
    expected = "385219c44eff4e2d7cb1203bd90b88a06e463d4027d9d512c80e1190620b02f1"
    assert digest("blake3", {"model_id": "m", "image": Tagged("image", data)}) == expected


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.binary(max_size=3)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v, max_size=2), max_leaves=6
)


@given(values, values)
def test_different_values_have_different_names(one: object, other: object) -> None:
    same = repr(one) == repr(other)
    assert (digest("sha256", {"v": one}) == digest("sha256", {"v": other})) is same or same_bytes(one, other)


def same_bytes(one: object, other: object) -> bool:
    """The peer's form does not tell a text from its bytes, nor the order of keys from nothing."""
    return repr(flat(one)) == repr(flat(other))


def flat(value: object) -> object:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    if isinstance(value, list):
        return [flat(one) for one in value]
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    return value
