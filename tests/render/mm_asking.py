"""Conversations with media, the requests that become of them, and the models' own processors to compare with."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from media_files import data_url

from scaleout.core import ChatRequest, GenerateRequest, Message, Part
from scaleout.core.media import MediaSet
from scaleout.pipeline.stages import Front
from scaleout.render.modality import array_of
from tests.render.mm_models import FAMILIES

NESTED = ("llava_onevision", "idefics3", "smolvlm")
"""Processors that tell pictures of one prompt from those of several by lists in lists."""


def conversation(images: list[Any], kind: str = "PNG") -> list[Message]:
    content = [Part("text", "Compare these:\n")]
    for i, image in enumerate(images):
        content += [Part("image_url", None, {"image_url": {"url": data_url(image, kind)}}), Part("text", f" no. {i}. ")]
    return [Message("user", content), Message("assistant", "They differ."), Message("user", [Part("text", "How?  ")])]


def render(front: Front, messages: list[Message], **options: Any) -> GenerateRequest:
    return front.renderer.render_chat(ChatRequest(messages, **options), request_id="r", media=MediaSet())


def for_processor(messages: list[Message]) -> list[dict[str, Any]]:
    """The same for a template of transformers."""
    kinds = {"image_url": "image", "input_audio": "audio", "video_url": "video"}

    def parts(message: Message) -> Any:
        content = message.content
        listed = [Part("text", content)] if isinstance(content, str) else content
        assert listed is not None
        return [{"type": "text", "text": p.text} if p.type == "text" else {"type": kinds[p.type]} for p in listed]

    return [{"role": message.role, "content": parts(message)} for message in messages]


def joined(request: GenerateRequest, name: str) -> Any:
    """One field of all items, put together as a model is given it."""
    import numpy as np

    assert request.features is not None
    items = [item.fields for item in request.features.items if item.fields is not None and name in item.fields]
    arrays = [array_of(fields[name].data) for fields in items]
    flat = type(items[0][name].kind).__name__ == "Flat"
    return np.concatenate(arrays) if flat else arrays


@contextmanager
def torchvision_seems_there() -> Iterator[None]:
    """Some processors import it, whatever they are asked to do."""
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


def own_processor(name: str, folder: Path, video_processor: Any = None) -> Any:
    """The model's processor from transformers. Without a video processor, which needs torch, it reads no films."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    family = FAMILIES[name]
    module = "pixtral" if family.processor == "PixtralProcessor" else name
    if module == "pixtral":
        pytest.importorskip("torch")  # its module imports it, whatever it is asked to do
    with torchvision_seems_there():
        found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    processor = getattr(found, family.processor)
    found.num2words = found.is_num2words_available = True  # for the times of films

    class WithoutFilms(processor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    WithoutFilms.__name__ = family.processor
    wanted = processor.get_attributes()
    parts: dict[str, Any] = {"tokenizer": AutoTokenizer.from_pretrained(folder)}
    if family.image is not None:
        parts["image_processor"] = AutoImageProcessor.from_pretrained(folder, backend="pil")
    if "feature_extractor" in wanted:
        parts["feature_extractor"] = AutoFeatureExtractor.from_pretrained(folder)
    if "video_processor" in wanted:
        parts["video_processor"] = video_processor
    return WithoutFilms(**parts, **family.arguments)
