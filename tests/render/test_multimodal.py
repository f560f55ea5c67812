"""Conversations with pictures: ids and tensors are those of the model's own processor, for every family."""

from __future__ import annotations

import importlib
import importlib.util
import io
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from media_files import data_url, picture

from scaleout.config import Mode, ModeConfig
from scaleout.config.media import MediaOptions
from scaleout.core import ChatRequest, GenerateRequest, Message, Part, Tensor
from scaleout.core.media import MediaSet
from scaleout.errors import BadRequest
from scaleout.pipeline.stages import Front, open_front
from scaleout.render.modality import array_of
from scaleout.tokenizer import load_model_files
from tests.render.mm_models import FAMILIES, build

np = pytest.importorskip("numpy")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

NESTED = ("llava_onevision", "idefics3", "smolvlm")
"""Processors that tell pictures of one prompt from those of several by lists in lists."""
IN_A_BATCH = ("pixel_values", "pixel_attention_mask")
FIELDS = {"pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"}
SIZES = [(200, 120), (90, 260), (64, 64)]


@pytest.fixture(scope="module")
def model_folder(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            family = FAMILIES[name]
            made[name] = build(family, tiny_model(family.base), tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(scope="module")
def open_model(model_folder: Callable[[str], Path]) -> Callable[..., Front]:
    fronts: dict[str, Front] = {}

    def front(name: str) -> Front:
        if name not in fronts:
            config = ModeConfig(Mode.RENDER_ONLY, model=str(model_folder(name)), served_model_names=("m",))
            fronts[name] = open_front(config, load_model_files(config.model))
        return fronts[name]

    return front


@contextmanager
def films_missing() -> Iterator[None]:
    """Some processors import torchvision for films, whatever they are asked to do."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    names = (
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional",
    )
    for name in names:
        sys.modules[name] = ModuleType(name)
    sys.modules[names[2]].functional = sys.modules[names[3]]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def own_processor(name: str, folder: Path) -> Any:
    """The model's processor from transformers, with a stand-in for the films that it cannot read without torchvision."""
    from transformers import AutoImageProcessor, AutoTokenizer

    family = FAMILIES[name]
    module = {"Glm4vProcessor": "glm4v", "PixtralProcessor": "pixtral"}.get(family.processor, name)
    if module == "pixtral":
        pytest.importorskip("torch")  # its module imports it, whatever it is asked to do
    with films_missing():
        found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    processor = getattr(found, family.processor)
    found.num2words = found.is_num2words_available = True  # for the times of films

    class WithoutFilms(processor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    WithoutFilms.__name__ = family.processor
    parts = {"image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil")}
    parts["tokenizer"] = AutoTokenizer.from_pretrained(folder)
    if "video_processor" in processor.get_attributes():
        parts["video_processor"] = None
    return WithoutFilms(**parts, **family.arguments)


def conversation(images: list[Any], kind: str = "PNG") -> list[Message]:
    content = [Part("text", "Compare these:\n")]
    for i, image in enumerate(images):
        content += [Part("image_url", None, {"image_url": {"url": data_url(image, kind)}}), Part("text", f" no. {i}. ")]
    return [Message("user", content), Message("assistant", "They differ."), Message("user", [Part("text", "How?  ")])]


def render(front: Front, messages: list[Message], **options: Any) -> GenerateRequest:
    return front.renderer.render_chat(ChatRequest(messages, **options), request_id="r", media=MediaSet())


def for_processor(messages: list[Message]) -> list[dict[str, Any]]:
    def parts(message: Message) -> Any:
        content = message.content
        listed = [Part("text", content)] if isinstance(content, str) else content
        assert listed is not None
        return [{"type": "text", "text": p.text} if p.type == "text" else {"type": "image"} for p in listed]

    return [{"role": message.role, "content": parts(message)} for message in messages]


def joined(request: GenerateRequest, name: str) -> Any:
    """One field of all items, put together as a model is given it."""
    assert request.features is not None
    arrays = [array_of(item.fields[name].data) for item in request.features.items]
    flat = type(request.features.items[0].fields[name].kind).__name__ == "Flat"
    return np.concatenate(arrays) if flat else arrays


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.image is not None])
def test_ids_and_tensors_are_the_processors_own(
    name: str, count: int, open_model: Callable[[str], Front], model_folder: Callable[[str], Path]
) -> None:
    images = [picture(*size, seed=i) for i, size in enumerate(SIZES[:count])]
    messages = conversation(images)
    front = open_model(name)
    rendered = front.renderer.finish(render(front, messages))
    own = own_processor(name, model_folder(name))
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


def sound(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    times = np.arange(int(seconds * rate)) / rate
    wave = np.sin(2 * np.pi * (200 + 100 * times) * times).astype("float32") * 0.5
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([wave] * channels, 1), rate, format="WAV")
    return buffer.getvalue()


def spoken(*files: bytes) -> list[Message]:
    parts = [Part("text", "Listen: ")]
    for data in files:
        given = {"data": b64encode(data).decode(), "format": "wav"}
        parts.append(Part("input_audio", None, {"input_audio": given}))
    return [Message("user", parts)]


def test_sounds_are_the_feature_extractors_own(
    open_model: Callable[[str], Front], model_folder: Callable[[str], Path]
) -> None:
    import soundfile
    from transformers import AutoFeatureExtractor, AutoTokenizer
    from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

    folder = model_folder("qwen2_audio")
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


def test_a_missing_extra_is_named(open_model: Callable[[str], Front], model_folder: Callable[[str], Path]) -> None:
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
    command = [sys.executable, "-c", program, str(model_folder("qwen2_audio"))]
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


# ---------------------------------------------------------------------------------------------- films


def film(seconds: float, rate: int = 8, still: bool = False, size: tuple[int, int] = (224, 168)) -> bytes:
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for i in range(round(seconds * rate)):
            image = picture(*size, seed=0 if still else i)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def shown(data: bytes, front: Front) -> GenerateRequest:
    url = f"data:video/mp4;base64,{b64encode(data).decode()}"
    part = Part("video_url", None, {"video_url": {"url": url}})
    return render(front, [Message("user", [Part("text", "See: "), part])])


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_frames_are_taken_evenly_and_stand_in_the_prompt(name: str, open_model: Callable[[str], Front]) -> None:
    rendered = shown(film(6.0), open_model(name))
    assert rendered.features is not None
    (item,) = rendered.features.items
    assert item.fields is not None
    times, down, across = array_of(item.fields["video_grid_thw"].data).tolist()
    assert times == 6  # two frames a second, two of them to a step
    assert item.length == list(rendered.token_ids).count(151656) == times * down * across // 4
    assert array_of(item.fields["pixel_values_videos"].data).shape == (times * down * across, 1176)
    if name == "qwen2_5_vl":
        assert array_of(item.fields["second_per_grid_ts"].data).tolist() == 1.0


def test_a_still_film_is_a_picture_many_times(open_model: Callable[[str], Front]) -> None:
    """Its patches are those that the image processor makes of one frame."""
    av = pytest.importorskip("av")
    front = open_model("qwen2_vl")
    data = film(2.0, still=True)
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
    pytest.importorskip("av")
    with pytest.raises(BadRequest, match=words) as caught:
        shown(data, open_model("qwen2_vl"))
    assert caught.value.param == "messages.0.content.1"


def test_a_model_that_tells_the_time_takes_no_films_yet(open_model: Callable[[str], Front]) -> None:
    with pytest.raises(BadRequest, match="takes no video input, only image"):
        shown(b"x", open_model("qwen3_vl"))


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


def test_the_size_of_frames_can_be_set(model_folder: Callable[[str], Path]) -> None:
    pytest.importorskip("av")
    media = MediaOptions(processor_kwargs={"max_pixels": 28 * 28 * 16, "min_pixels": 3136})
    config = ModeConfig(Mode.RENDER_ONLY, model=str(model_folder("qwen2_vl")), media=media)
    rendered = shown(film(2.0), open_front(config, load_model_files(config.model)))
    assert rendered.features is not None
    fields = rendered.features.items[0].fields
    assert fields is not None
    _, down, across = array_of(fields["video_grid_thw"].data).tolist()
    assert down * across // 4 <= 16
