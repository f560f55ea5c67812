"""Pictures of Phi-4-multimodal: our own arithmetic beside that of its processor, which needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_files import picture

from scaleout.core import Message, Part
from scaleout.errors import BadRequest
from scaleout.pipeline.stages import Front
from scaleout.render.modalities.phi4_pictures import CropProcessor
from tests.render.mm_asking import conversation, for_processor, joined, render
from tests.render.torchvision_stand_in import stand_in

np = pytest.importorskip("numpy")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

MOST = 4
"""Crops, as the model of these tests has it."""


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        name = "transformers.models.phi4_multimodal.image_processing_phi4_multimodal"
        yield stand_in(patch, name).Phi4MultimodalImageProcessor(dynamic_hd=MOST)


@pytest.mark.parametrize("size", [(200, 120), (90, 260), (448, 448), (640, 480), (1280, 720), (3000, 1000), (449, 20)])
def test_tensors_are_the_processors_own(
    size: tuple[int, int], own: Any, open_model: Callable[[str], Front], mm_folder: Callable[[str], Any]
) -> None:
    from transformers import AutoTokenizer

    messages = conversation([picture(*size)])
    rendered = render(open_model("phi4_multimodal"), messages)
    expected = own([picture(*size)], return_tensors="np")
    for name in ("image_sizes", "image_attention_mask", "num_img_tokens"):
        assert np.array_equal(joined(rendered, name), expected[name])
    (pixels,), (wanted,) = joined(rendered, "image_pixel_values"), expected["image_pixel_values"]
    assert pixels.dtype == wanted.dtype
    assert np.array_equal(pixels[1:], wanted[1:])
    assert np.allclose(pixels[0], wanted[0], atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(mm_folder("phi4_multimodal"))
    text = tokenizer.apply_chat_template(for_processor(messages), tokenize=False, add_generation_prompt=True)
    slots = "<|image|>" * int(expected["num_img_tokens"][0])
    assert list(rendered.token_ids) == tokenizer.encode(text.replace("<|image|>", slots), add_special_tokens=False)


@given(width=st.integers(1, 20_000), height=st.integers(1, 20_000), most=st.sampled_from([1, 4, 7, 12, 36]))
def test_grids_are_the_processors_own(width: int, height: int, most: int, own: Any) -> None:
    """Of pictures that need more crops than there may be."""
    ours = CropProcessor(448, 14, most, (0.5,) * 3, (0.5,) * 3, 1 / 255)._grid(width, height, most)
    if -(-width // 448) * -(-height // 448) <= most:
        assert ours == (-(-width // 448), -(-height // 448))
        return
    shapes = {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= most}
    ascending = sorted(shapes, key=lambda shape: shape[0] * shape[1])
    assert ours == own.find_closest_aspect_ratio(width / height, ascending, width, height, 448)


def test_a_picture_that_is_too_narrow_is_refused(open_model: Callable[[str], Front]) -> None:
    with pytest.raises(BadRequest, match="too narrow"):
        render(open_model("phi4_multimodal"), conversation([picture(2000, 8)]))


def test_sounds_are_refused(open_model: Callable[[str], Front]) -> None:
    part = Part("input_audio", None, {"input_audio": {"data": "AAAA", "format": "wav"}})
    with pytest.raises(BadRequest, match="takes no audio input, only image"):
        render(open_model("phi4_multimodal"), [Message("user", [part])])
