"""Films in conversations: frames, sizes, times and ids are those of the model's own video processor."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_files import film

from scaleout.config import Mode, ModeConfig
from scaleout.config.media import MediaOptions
from scaleout.core import GenerateRequest, Message, Part, Tensor
from scaleout.errors import BadRequest
from scaleout.pipeline.stages import Front, open_front
from scaleout.render.modalities import video_families
from scaleout.render.modality import array_of
from scaleout.tokenizer import load_model_files
from tests.render.mm_asking import for_processor, joined, own_processor, render
from tests.render.mm_models import FAMILIES
from tests.render.torchvision_stand_in import stand_in

np = pytest.importorskip("numpy")
av = pytest.importorskip("av")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

PROCESSORS = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_omni": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "glm4v": ("glm4v", "Glm4vVideoProcessor"),
    "glm46v": ("glm46v", "Glm46VVideoProcessor"),
}
FRAMES = [48, 5, 75]
"""Of films with eight a second."""


@pytest.fixture(scope="module")
def video_processor() -> Iterator[Callable[[str], Any]]:
    """`video_processor(name)`: a family's own of transformers, which needs torch."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def find(name: str) -> Any:
            module, processor = PROCESSORS[name]
            found = stand_in(patch, f"transformers.models.{module}.video_processing_{module}")
            settings = {"cap_pixels_per_frame": False} if "Qwen" in processor else {}
            return getattr(found, processor)(**settings, **(FAMILIES[name].video or {}))

        yield find


def asked(*films: bytes) -> list[Message]:
    parts = [Part("text", "See: ")]
    for data in films:
        url = f"data:video/mp4;base64,{b64encode(data).decode()}"
        parts.append(Part("video_url", None, {"video_url": {"url": url}}))
    return [Message("user", parts)]


def shown(data: bytes, front: Front) -> GenerateRequest:
    return render(front, asked(data))


# ---------------------------------------------------------------------------------------------- beside transformers


@pytest.mark.parametrize("name", PROCESSORS)
def test_ids_and_tensors_are_the_processors_own(
    name: str,
    open_model: Callable[[str], Front],
    mm_folder: Callable[[str], Path],
    video_processor: Callable[[str], Any],
) -> None:
    front, own = open_model(name), own_processor(name, mm_folder(name), video_processor(name))
    for frames in FRAMES:
        data = film(frames)
        messages = asked(data)
        rendered = render(front, messages)
        expected = processed(own, messages, data, frames, do_rescale=False, do_normalize=False)
        assert list(rendered.token_ids) == list(expected["input_ids"][0])
        assert np.array_equal(joined(rendered, "video_grid_thw"), expected["video_grid_thw"])
        pixels = joined(rendered, "pixel_values_videos")
        if pixels.dtype == np.uint8:
            assert np.array_equal(pixels, expected["pixel_values_videos"])
        if name == "qwen2_5_vl":
            (lasts,) = joined(rendered, "second_per_grid_ts")
            assert np.isclose(lasts, expected["second_per_grid_ts"][0])
        finished = joined(front.renderer.finish(rendered), "pixel_values_videos")
        floats = processed(own, messages, data, frames)["pixel_values_videos"]
        assert finished.dtype == np.float32
        assert np.allclose(finished, floats, atol=1e-5)


def processed(own: Any, messages: list[Message], data: bytes, frames: int, **more: Any) -> Any:
    """What the model's processor makes of a conversation with one film, two frames a second."""
    with av.open(io.BytesIO(data)) as opened:
        decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])
    told = {"total_num_frames": frames, "fps": 8.0, "duration": frames / 8}
    given = {"video_metadata": [told], "do_sample_frames": True, "fps": 2, "return_tensors": "np", **more}
    text = own.tokenizer.apply_chat_template(for_processor(messages), tokenize=False, add_generation_prompt=True)
    text_kwargs = {"add_special_tokens": False, "return_tensors": None}
    return own(videos=[decoded], text=[text], text_kwargs=text_kwargs, videos_kwargs=given)


@given(data=st.data())
def test_frames_and_sizes_are_the_processors_own(data: st.DataObject, video_processor: Callable[[str], Any]) -> None:
    """Of films of any length, without decoding one."""
    from transformers.video_utils import VideoMetadata

    name = data.draw(st.sampled_from(sorted(PROCESSORS)))
    frames, rate = data.draw(st.integers(2, 20_000)), data.draw(st.sampled_from([1.0, 8.0, 24.0, 30000 / 1001, 60.0]))
    wish = data.draw(st.sampled_from([1, 2, 3.5]))
    own, family = video_processor(name), video_families.FAMILIES[name]
    own_settings = {key: getattr(own, key) for key in ("temporal_patch_size", "patch_size", "merge_size")}
    settings = {**own_settings, **family.defaults, **(FAMILIES[name].video or {})}
    told = VideoMetadata(total_num_frames=frames, fps=rate, duration=frames / rate)
    # Its count of equal parts may be one too many by rounding, which would be a frame behind the last.
    expected = [one for one in np.asarray(own.sample_frames(told, fps=wish)).tolist() if one < frames]
    film = video_families.Film(frames, rate, frames / rate)
    assert list(family.pick(film, settings, video_families.Wanted(wish))) == expected
    width, height = data.draw(st.integers(40, 2000)), data.draw(st.integers(40, 2000))
    ours = family.fit(len(expected), height, width, settings)
    patches = own.get_num_of_video_patches(len(expected), height, width, {})
    steps = -(-len(expected) // settings["temporal_patch_size"])
    assert steps * (ours[0] // settings["patch_size"]) * (ours[1] // settings["patch_size"]) == patches


def test_two_films_and_their_times(open_model: Callable[[str], Front]) -> None:
    front = open_model("glm4v")
    rendered = render(front, asked(film(48), film(12)))
    assert rendered.features is not None
    first, second = rendered.features.items
    assert first.offset + first.length <= second.offset
    text = front.tokenizer.decode(rendered.token_ids, False).replace("<|image|>", "")
    steps = ["".join(f"<|begin_of_image|><|end_of_image|>{time}" for time in times) for times in (range(6), range(2))]
    wanted = "".join(f"<|begin_of_video|>{times}<|end_of_video|>" for times in steps)
    assert wanted in text


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_frames_are_taken_evenly_and_stand_in_the_prompt(name: str, open_model: Callable[[str], Front]) -> None:
    rendered = shown(film(48), open_model(name))
    assert rendered.features is not None
    (item,) = rendered.features.items
    assert item.fields is not None
    times, down, across = array_of(item.fields["video_grid_thw"].data).tolist()
    assert times == 6  # two frames a second, two of them to a step
    slot = open_model(name).tokenizer.id_of("<|video_pad|>")
    assert item.length == list(rendered.token_ids).count(slot) == times * down * across // 4
    assert array_of(item.fields["pixel_values_videos"].data).shape == (times * down * across, 1176)
    if name == "qwen2_5_vl":
        assert array_of(item.fields["second_per_grid_ts"].data).tolist() == 1.0


def test_a_still_film_is_a_picture_many_times(open_model: Callable[[str], Front]) -> None:
    """Its patches are those that the image processor makes of one frame."""
    front = open_model("qwen2_vl")
    data = film(16, still=True)
    with av.open(io.BytesIO(data)) as opened:
        frame = next(opened.decode(video=0)).to_image()
    rendered = shown(data, front)
    assert rendered.features is not None
    fields = rendered.features.items[0].fields
    assert fields is not None
    patches = array_of(fields["pixel_values_videos"].data)
    assert front.renderer.multimodal is not None
    processor = front.renderer.multimodal.kinds["video"].processor  # type: ignore[attr-defined]
    size = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
    own = processor([frame], size=size, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    first, its = (one[: len(own)].reshape(len(own), 3, 2, 14, 14)[:, :, 0] for one in (patches, own))
    assert np.array_equal(first, its)  # later frames differ a little: the encoder has its way
    assert np.abs(patches.astype(int) - np.tile(own, (len(patches) // len(own), 1))).mean() < 5
    finished = front.renderer.finish(rendered).features
    assert finished is not None
    floats = (finished.items[0].fields or {})["pixel_values_videos"].data
    assert isinstance(floats, Tensor)
    assert floats.dtype == "float32"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00\x00\x20ftypmp42" + bytes(40), "no film"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "no film"),
        (b"GIF89a", "no film"),
    ],
    ids=["cut", "playlist", "picture"],
)
def test_what_is_no_film_is_refused(data: bytes, words: str, open_model: Callable[[str], Front]) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        shown(data, open_model("qwen2_vl"))
    assert caught.value.param == "messages.0.content.1"


def test_the_size_of_frames_can_be_set(mm_folder: Callable[[str], Path]) -> None:
    media = MediaOptions(processor_kwargs={"max_pixels": 28 * 28 * 16, "min_pixels": 3136})
    config = ModeConfig(Mode.RENDER_ONLY, model=str(mm_folder("qwen2_vl")), media=media)
    rendered = shown(film(16), open_front(config, load_model_files(config.model)))
    assert rendered.features is not None
    fields = rendered.features.items[0].fields
    assert fields is not None
    _, down, across = array_of(fields["video_grid_thw"].data).tolist()
    assert down * across // 4 <= 16


def opened_with(folder: Path, **media: Any) -> Front:
    config = ModeConfig(Mode.RENDER_ONLY, model=str(folder), media=MediaOptions(**media))
    return open_front(config, load_model_files(config.model))


def test_no_more_frames_than_are_allowed(mm_folder: Callable[[str], Path], open_model: Callable[[str], Front]) -> None:
    """Also where a container does not say how many frames it has."""
    few = opened_with(mm_folder("qwen3_vl"), max_video_frames=6)
    for kind in ("mp4", "matroska"):
        data = film(48, kind=kind)
        grids = [joined(shown(data, front), "video_grid_thw")[0].tolist() for front in (open_model("qwen3_vl"), few)]
        assert [times for times, _, _ in grids] == [6, 3]


def test_wishes_for_frames(mm_folder: Callable[[str], Path]) -> None:
    def steps(front: Front, **wish: Any) -> int:
        rendered = render(front, asked(film(48)), mm_options={"media_io_kwargs": {"video": wish}})
        return int(joined(rendered, "video_grid_thw")[0][0])

    qwen, glm = (opened_with(mm_folder(name), trust_request_kwargs=True) for name in ("qwen3_vl", "glm4v"))
    assert [steps(qwen, num_frames=8), steps(qwen, fps=1), steps(qwen, fps=100)] == [4, 3, 24]
    assert steps(glm, fps=1) == 3
    for front, wish, words in (
        (glm, {"num_frames": 8}, "chosen by time"),
        (qwen, {"fps": 0}, "positive number"),
        (qwen, {"num_frames": True}, "positive integer"),
    ):
        with pytest.raises(BadRequest, match=words) as caught:
            steps(front, **wish)
        assert str(caught.value.param).startswith("messages.0.content.1")
