"""Conversations with pictures: ids and tensors are those of the model's own processor, for every family."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from media_files import data_url, picture

from scaleout.config import Mode, ModeConfig
from scaleout.core import ChatRequest, GenerateRequest, Message, Part
from scaleout.core.media import MediaSet
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
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_tensors_are_the_processors_own(
    name: str, count: int, open_model: Callable[[str], Front], model_folder: Callable[[str], Path]
) -> None:
    images = [picture(*size, seed=i) for i, size in enumerate(SIZES[:count])]
    messages = conversation(images)
    rendered = render(open_model(name), messages)
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
