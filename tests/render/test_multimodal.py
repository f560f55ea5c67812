"""Conversations with pictures: ids and tensors are those of the model's own processor, for every family."""

from __future__ import annotations

import io
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from media_files import data_url, picture, sound

from scaleout.core import Message, Part, Tensor
from scaleout.errors import BadRequest
from scaleout.pipeline.stages import Front
from scaleout.render.modality import array_of
from tests.render.mm_asking import NESTED, conversation, for_processor, joined, render
from tests.render.mm_models import FAMILIES

np = pytest.importorskip("numpy")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

WITH_PIL = [name for name, family in FAMILIES.items() if family.image is not None and name != "phi4_multimodal"]
IN_A_BATCH = ("pixel_values", "pixel_attention_mask")
FIELDS = {"pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"}
SIZES = [(200, 120), (90, 260), (64, 64)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", WITH_PIL)
def test_ids_and_tensors_are_the_processors_own(
    name: str, count: int, open_model: Callable[[str], Front], own_processor: Callable[[str], Any]
) -> None:
    images = [picture(*size, seed=i) for i, size in enumerate(SIZES[:count])]
    messages = conversation(images)
    front = open_model(name)
    rendered = front.renderer.finish(render(front, messages))
    own = own_processor(name)
    text = own.tokenizer.apply_chat_template(for_processor(messages), tokenize=False, add_generation_prompt=True)
    expected = own(
        images=[images] if name in NESTED else images,
        text=[text],
        text_kwargs={"add_special_tokens": False, "return_tensors": None},
        images_kwargs={"return_tensors": None},
    )
    assert list(rendered.token_ids) == list(expected["input_ids"][0])
    assert rendered.features is not None
    for field in FIELDS & expected.keys():
        wanted = expected[field][0] if field in IN_A_BATCH and name in ("idefics3", "smolvlm") else expected[field]
        for ours, theirs in zip(joined(rendered, field), wanted, strict=True):
            padded = np.asarray(theirs, dtype=ours.dtype)
            assert np.array_equal(ours, padded[tuple(slice(length) for length in ours.shape)])
            assert not padded[tuple(slice(length, None) for length in ours.shape)].any()
    names = set().union(*(item.fields or {} for item in rendered.features.items))
    assert names - expected.keys() <= {"num_patches", "image_num_patches", "image_token_id"}
    assert expected.keys() - names <= {
        "input_ids",
        "attention_mask",
        "mm_token_type_ids",
        "token_type_ids",
        "batch_num_images",
    }


# ---------------------------------------------------------------------------------------------- sounds


def spoken(*files: bytes) -> list[Message]:
    parts = [Part("text", "Listen: ")]
    for data in files:
        given = {"data": b64encode(data).decode(), "format": "wav"}
        parts.append(Part("input_audio", None, {"input_audio": given}))
    return [Message("user", parts)]


def test_sounds_are_the_feature_extractors_own(
    open_model: Callable[[str], Front], mm_folder: Callable[[str], Path]
) -> None:
    import soundfile
    from transformers import AutoFeatureExtractor, AutoTokenizer
    from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

    folder = mm_folder("qwen2_audio")
    messages = spoken(sound(1.0), sound(2.7), sound(9.0))
    rendered = render(open_model("qwen2_audio"), messages)
    own = Qwen2AudioProcessor(AutoFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    waves = [soundfile.read(io.BytesIO(sound(s)), dtype="float32")[0] for s in (1.0, 2.7, 9.0)]
    listed = [{"role": "user", "content": [{"type": "text", "text": "Listen: "}, *[{"type": "audio"}] * 3]}]
    text = own.tokenizer.apply_chat_template(listed, tokenize=False, add_generation_prompt=True)
    audio_kwargs = {"sampling_rate": 16_000, "return_tensors": "np"}
    expected = own(audio=waves, text=[text], audio_kwargs=audio_kwargs, text_kwargs={"add_special_tokens": False})
    assert list(rendered.token_ids) == list(expected["input_ids"][0])
    for name in ("input_features", "feature_attention_mask"):
        for ours, theirs in zip(joined(rendered, name), expected[name], strict=True):
            assert np.array_equal(ours, theirs)


def test_pictures_and_sounds_together(open_model: Callable[[str], Front], own_processor: Callable[[str], Any]) -> None:
    """As Qwen2.5-Omni's own processor has them, which pads sounds to the longest that it knows."""
    import soundfile

    own = own_processor("qwen2_5_omni")
    front = open_model("qwen2_5_omni")
    files, pictures = [sound(1.0), sound(2.7)], [picture(*size) for size in SIZES[:2]]
    messages = [*conversation(pictures[:1]), *spoken(*files), *conversation(pictures[1:])]
    rendered = front.renderer.finish(render(front, messages))
    expected = own(
        images=pictures,
        audio=[soundfile.read(io.BytesIO(data), dtype="float32")[0] for data in files],
        text=[own.tokenizer.apply_chat_template(for_processor(messages), tokenize=False, add_generation_prompt=True)],
        text_kwargs={"add_special_tokens": False, "return_tensors": None},
        images_kwargs={"return_tensors": None},
        audio_kwargs={"return_tensors": "np"},
    )
    assert list(rendered.token_ids) == list(expected["input_ids"][0])
    assert np.array_equal(joined(rendered, "pixel_values"), expected["pixel_values"])
    assert np.array_equal(joined(rendered, "image_grid_thw"), expected["image_grid_thw"])
    assert np.array_equal(joined(rendered, "feature_attention_mask"), expected["feature_attention_mask"])
    assert rendered.features is not None
    sounds = [item.fields or {} for item in rendered.features.items if item.modality == "audio"]
    for fields, whole, mask in zip(sounds, expected["input_features"], expected["feature_attention_mask"], strict=True):
        length = int(mask.sum())
        assert array_of(fields["audio_feature_lengths"].data) == length
        assert np.array_equal(array_of(fields["input_audio_features"].data), whole[:, :length])


def test_sounds_of_any_rate_and_number_of_channels(open_model: Callable[[str], Front]) -> None:
    front = open_model("qwen2_audio")
    plain = render(front, spoken(sound(2.0)))
    for rate, channels in ((8_000, 1), (44_100, 2), (48_000, 6)):
        other = render(front, spoken(sound(2.0, rate, channels)))
        assert other.token_ids == plain.token_ids
        difference = np.abs(joined(other, "input_features")[0] - joined(plain, "input_features")[0])
        assert difference.mean() < 0.1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"RIFF", "no sound"),
        (b"", "base64"),
        (sound(0.001, 16_000), "too short"),
        (sound(601.0, 1_000), "600 seconds"),
    ],
    ids=["cut", "empty", "short", "long"],
)
def test_what_is_no_sound_is_refused(data: bytes, words: str, open_model: Callable[[str], Front]) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        render(open_model("qwen2_audio"), spoken(data))
    assert str(caught.value.param).startswith("messages.0.content.1")


def test_a_missing_extra_is_named(open_model: Callable[[str], Front], mm_folder: Callable[[str], Path]) -> None:
    program = (
        "import sys\nsys.modules['soundfile'] = None\n"
        "from scaleout.config import Mode, ModeConfig\nfrom scaleout.core import ChatRequest, Message, Part\n"
        "from scaleout.pipeline.stages import open_front\nfrom scaleout.tokenizer import load_model_files\n"
        "config = ModeConfig(Mode.RENDER_ONLY, model=sys.argv[1], served_model_names=('m',))\n"
        "front = open_front(config, load_model_files(config.model))\n"
        "part = Part('input_audio', None, {'input_audio': {'data': 'AAAA', 'format': 'wav'}})\n"
        "try:\n    front.render(ChatRequest([Message('user', [part])]), 'r')\n"
        "except Exception as error:\n    print(error)\n"
        "print(len(front.render(ChatRequest([Message('user', 'hi')]), 'r')[0].token_ids))\n"
    )
    command = [sys.executable, "-c", program, str(mm_folder("qwen2_audio"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    refused, length = done.stdout.splitlines()
    assert "[audio]" in refused
    assert int(length) > 3


RAW = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "mistral3"}
"""Models whose pixels travel as they are: the reference peer's engine brings them into range, whatever it is sent."""


@pytest.mark.parametrize("name", ["qwen2_vl", "mistral3", "llava"])
def test_pixels_travel_as_the_models_engines_want_them(name: str, open_model: Callable[[str], Front]) -> None:
    features = render(open_model(name), conversation([picture(200, 120)])).features
    assert features is not None
    pixels = (features.items[0].fields or {})["pixel_values"].data
    assert isinstance(pixels, Tensor)
    assert pixels.dtype == ("uint8" if name in RAW else "float32")


def test_pictures_are_seen_as_a_viewer_shows_them(open_model: Callable[[str], Front]) -> None:
    from PIL import Image

    image = picture(200, 120)
    exif = Image.Exif()
    exif[0x0112] = 6  # lay it on its right side
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    turned = f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
    upright = data_url(image.transpose(Image.Transpose.ROTATE_270))
    front = open_model("qwen2_vl")
    seen = [
        joined(render(front, [Message("user", [Part("image_url", None, {"image_url": url})])]), "pixel_values")
        for url in (turned, upright)
    ]
    assert np.array_equal(*seen)


def test_what_is_transparent_is_white(open_model: Callable[[str], Front]) -> None:
    from PIL import Image

    clear = data_url(Image.new("RGBA", (56, 56), (200, 0, 0, 0)))
    palette = Image.new("P", (56, 56), 0)
    palette.putpalette([200, 0, 0])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", transparency=0)
    for url in (clear, f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"):
        message = Message("user", [Part("image_url", None, {"image_url": url})])
        assert (joined(render(open_model("qwen2_vl"), [message]), "pixel_values") == 255).all()
