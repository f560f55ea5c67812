"""What the kinds of media have in common: what stands for an item in a prompt, and what becomes of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import field, frozen

from scaleout.core import Field, Json, Tensor
from scaleout.core.features import FieldValue
from scaleout.core.media import MediaFile
from scaleout.errors import ScaleoutError


@frozen
class Run:
    """One token many times over: the slots that an item's embeddings go to."""

    token: str
    count: int


Expansion = Sequence[str | Run]
"""What an item's placeholder becomes in the prompt: text (which may hold special tokens) and runs of slots."""


@frozen
class Slots:
    """How items of one kind are written by a model's template.

    `token` is the one added token that the template writes for an item and that is expanded. `text` stands for an item where the
    template sees nothing but text. `slot` is the token whose embedding is replaced.
    """

    token: str
    text: str
    slot: str


@frozen
class Processed:
    """An item as the model wants it. `size` counts the bytes of the tensors."""

    fields: Mapping[str, Field]
    expansion: Expansion
    size: int


@frozen
class MediaModel:
    """A model as far as its processors are told. Mappings hold the files of the same names, empty where there is none."""

    name: str
    folder: Path | None
    config: Mapping[str, Any] = field(factory=dict)
    tokenizer_config: Mapping[str, Any] = field(factory=dict)
    processor_config: Mapping[str, Any] = field(factory=dict)
    preprocessor_config: Mapping[str, Any] = field(factory=dict)
    video_preprocessor_config: Mapping[str, Any] = field(factory=dict)

    @property
    def processor_class(self) -> str | None:
        """The name of the model's processor in transformers, where one of the files tells it."""
        for file in (self.processor_config, self.preprocessor_config, self.tokenizer_config):
            if isinstance(found := file.get("processor_class"), str):
                return found
        return None

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the processor, which older models keep beside the image processor's."""
        for file in (self.processor_config, self.preprocessor_config):
            if file.get(name) is not None:
                return file[name]
        return default


@frozen
class MediaLimits:
    """What is refused before it is decoded. `io_kwargs`, `processor_kwargs` are the operator's, by modality or for all."""

    max_image_pixels: int = 64 << 20
    max_audio_seconds: float = 600.0
    max_video_frames: int = 768
    io_kwargs: Mapping[str, Any] = field(factory=dict)
    processor_kwargs: Mapping[str, Any] = field(factory=dict)


class Modality(Protocol):
    """One kind of media for one model. Made by `open_modality` of its module; safe to use from several threads."""

    slots: Slots

    def process(
        self, file: MediaFile, kwargs: Mapping[str, Json], io_kwargs: Mapping[str, Json], alone: bool
    ) -> Processed:
        """Decode and prepare one item. `alone`: it is the only one of its kind in the request.

        Raises `BadRequest` for what is no such file, or too large a one.
        """
        ...

    def finish(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        """Fields as the model's own code takes them, where they travel in another form."""
        ...

    def content_key(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Any:
        """What is hashed for this item."""
        ...


SCOPES = {"image": "images_kwargs", "audio": "audio_kwargs", "video": "videos_kwargs"}
"""Names under which arguments for one kind's processor may be grouped; arguments outside them are for all kinds."""


def scoped(kwargs: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Arguments for one kind's processor: those for all, under those for it alone."""
    common = {name: value for name, value in kwargs.items() if name not in SCOPES.values()}
    own = kwargs.get(SCOPES[kind])
    return {**common, **(own if isinstance(own, dict) else {})}


class MissingExtra(ScaleoutError):
    """A model takes such media, and the packages for them are not installed. `extra` names what to install."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"pip install 'scaleout[{extra}]'")
        self.extra = extra


def token_of(model: MediaModel, name: str, default: str) -> str:
    """A special token by its name in the tokenizer's configuration (`image_token`, `boi_token` …)."""
    extra = model.tokenizer_config.get("extra_special_tokens")
    for place in (model.tokenizer_config, extra if isinstance(extra, dict) else {}):
        found = place.get(name)
        if isinstance(found, dict):
            found = found.get("content")
        if isinstance(found, str):
            return found
    return default


def tensor_of(array: Any) -> Tensor:
    """A NumPy array as a tensor. The bytes are copied only where they are not contiguous."""
    import numpy as np

    array = np.ascontiguousarray(array) if array.ndim else array
    return Tensor(array.dtype.name, tuple(array.shape), array.reshape(-1).view(np.uint8).data)


def array_of(tensor: Tensor) -> Any:
    """A tensor as a NumPy array that shares its bytes; bfloat16 becomes uint16."""
    import numpy as np

    dtype = "uint16" if tensor.dtype == "bfloat16" else tensor.dtype
    return np.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)


def size_of(value: FieldValue) -> int:
    """Bytes of a field's tensors."""
    if isinstance(value, Tensor):
        return value.data.nbytes if isinstance(value.data, memoryview) else len(value.data)
    return sum(map(size_of, value)) if isinstance(value, list) else 0
