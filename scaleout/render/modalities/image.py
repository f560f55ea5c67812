"""Pictures: opened within bounds by Pillow, prepared by the model's own processor in NumPy. Never needs torch."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING, Any

from attrs import define, field

from scaleout.core import Field, Json, Tensor
from scaleout.core.media import MediaFile
from scaleout.errors import BadRequest, ConfigError
from scaleout.render.media_hash import Tagged
from scaleout.render.modalities.image_families import ImageFamily, family_of
from scaleout.render.modality import (
    MediaLimits,
    MediaModel,
    MissingExtra,
    Processed,
    Slots,
    array_of,
    scoped,
    size_of,
    tensor_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image

LOG = logging.getLogger(__name__)

EXTRA = "multimodal"
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""What is decoded. Pillow knows dozens more, some of which start other programs or are hardly ever fuzzed."""
WHITE = (255, 255, 255)
TONE_ARGUMENTS = {"do_rescale", "do_normalize", "rescale_factor", "image_mean", "image_std"}
"""Of image processors: what brings pixels into the model's range."""


def open_modality(model: MediaModel, limits: MediaLimits) -> ImageModality | None:
    """The model's way with pictures; None where it takes none.

    Raises `MissingExtra` where packages are missing, `ConfigError` where the model's files do not fit.
    """
    family = family_of(model)
    if family is None:
        return None
    try:
        import transformers  # noqa: F401
        from PIL import Image
    except ImportError:
        raise MissingExtra(EXTRA) from None
    # Its own guard warns at half of what --max-image-pixels allows; ours refuses before any decoding.
    Image.MAX_IMAGE_PIXELS = None
    processor = family.own(model) if family.own is not None else _open_processor(model)
    if family.raw(model) and hasattr(processor, "patchify"):
        processor.patchify = cut_patches
    gate = PixelGate(limits.max_image_pixels)
    tones = find_tones(processor, scoped(limits.processor_kwargs, "image")) if family.raw(model) else None
    return ImageModality(model, family, family.slots(model), processor, limits, gate, tones)


def _open_processor(model: MediaModel) -> Any:
    from transformers import AutoImageProcessor

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                str(model.folder), backend="pil", local_files_only=True, trust_remote_code=False
            )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"The image processor of {model.name!r} cannot be used: {error}") from error


@define
class PixelGate:
    """How many pixels are being worked on. Who brings more than are free waits; one picture alone always passes."""

    most: int
    busy: int = 0
    _changed: Condition = field(factory=Condition)

    @contextmanager
    def passing(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self.busy or self.busy + pixels <= self.most)
            self.busy += pixels
        try:
            yield
        finally:
            with self._changed:
                self.busy -= pixels
                self._changed.notify_all()


@define(frozen=True)
class ImageModality:
    model: MediaModel
    family: ImageFamily
    slots: Slots
    processor: Any
    limits: MediaLimits
    gate: PixelGate
    tones: Any = None
    """For models whose pixels travel as they are: what the processor makes of each value of each channel, [channel, 256]."""

    def process(
        self, file: MediaFile, kwargs: Mapping[str, Json], io_kwargs: Mapping[str, Json], alone: bool
    ) -> Processed:
        with self._open(file) as header:
            pixels = header.width * header.height
        with self.gate.passing(pixels):
            return self._process(self.decode(file, io_kwargs), kwargs, alone)

    def _process(self, picture: Image, kwargs: Mapping[str, Json], alone: bool) -> Processed:
        given = {**self.family.call(self.model), **self._known(kwargs)}
        if self.tones is not None:
            given |= {"do_rescale": False, "do_normalize": False}
        # A second picture tells the processor that this one has company; what it makes of that one is not used.
        company = [] if alone or not self.family.counts_pictures else [picture.resize((8, 8))]
        nested = [[picture, *company]]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inputs = self.processor(nested if self.family.nested else [picture], return_tensors=None, **given)
        except (ValueError, TypeError, ZeroDivisionError, MemoryError) as error:
            raise BadRequest(f"The image cannot be prepared for this model: {error}", "messages") from error
        fields = self.family.fields(self.model, inputs)
        if self.tones is not None:
            fields["pixel_values"] = _as_bytes(fields["pixel_values"])
        size = sum(size_of(one.data) for one in fields.values())
        return Processed(fields, self.family.expand(self.model, self.processor, inputs), size)

    def finish(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return in_range(fields, "pixel_values", self.tones)

    def content_key(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Any:
        """The file's bytes, and how its colours were changed where they were."""
        mode, background = _wishes(io_kwargs)
        with self._open(file) as picture:
            same = mode is None or picture.mode == mode
        if same:
            return Tagged("image", file.data)
        return Tagged(
            "image", {"io_config": {"image_mode": mode, "rgba_background_color": background}, "data": file.data}
        )

    def decode(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Image:
        """The picture as a viewer shows it, in the colours that models expect: upright, its transparent parts white."""
        from PIL import ImageOps, UnidentifiedImageError

        mode, background = _wishes(io_kwargs)
        upright = self._open(file)
        try:
            upright.load()
        except (OSError, SyntaxError, ValueError, EOFError, UnidentifiedImageError) as error:
            raise _damaged() from error
        try:
            ImageOps.exif_transpose(upright, in_place=True)  # a copy of a huge picture only where it is turned
        except Exception as error:
            # Orientation is a hint in a block of metadata that many programs write wrongly.
            LOG.debug("orientation of a picture is not readable: %s", type(error).__name__)
        if mode is None or upright.mode == mode:
            return upright
        if mode == "RGB" and (upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info):
            return _on_background(upright.convert("RGBA"), background)
        return upright.convert(mode)

    def _open(self, file: MediaFile) -> Image:
        """Read the header. Raises `BadRequest` for other files, and for more pixels than are allowed."""
        from PIL import Image, UnidentifiedImageError

        try:
            picture = Image.open(io.BytesIO(file.data), formats=FORMATS)
        except (OSError, SyntaxError, ValueError, EOFError, UnidentifiedImageError) as error:
            raise BadRequest(
                f"The file is no image that can be read here ({', '.join(FORMATS)}).", "messages"
            ) from error
        width, height = picture.size
        if width * height > self.limits.max_image_pixels:
            raise BadRequest(
                f"The image has {width} x {height} pixels, more than the limit of {self.limits.max_image_pixels} "
                "(--max-image-pixels).",
                "messages",
            )
        return picture

    def _known(self, kwargs: Mapping[str, Json]) -> dict[str, Json]:
        """The arguments that this image processor takes. Raises `BadRequest` for others."""
        known = getattr(self.processor.valid_kwargs, "__annotations__", {})
        every = set(known).union(*(getattr(base, "__annotations__", {}) for base in type(self.processor).__mro__))
        every |= set(vars(self.processor))
        fixed = sorted(TONE_ARGUMENTS & kwargs.keys()) if self.tones is not None else []
        if fixed and kwargs[fixed[0]] != scoped(self.limits.processor_kwargs, "image").get(fixed[0]):
            raise BadRequest(
                f"{fixed[0]!r} is the engine's business for this model, not a request's.",
                f"mm_processor_kwargs.{fixed[0]}",
            )
        unknown = sorted(kwargs.keys() - every)
        if unknown:
            raise BadRequest(
                f"The image processor of this model has no argument {unknown[0]!r}.",
                f"mm_processor_kwargs.{unknown[0]}",
            )
        return dict(kwargs)


def in_range(fields: Mapping[str, Field], name: str, tones: Any) -> Mapping[str, Field]:
    """The same with pixels in the model's range, exactly as the processor would have brought them there."""
    import numpy as np

    pixels = fields.get(name)
    if tones is None or pixels is None or not isinstance(pixels.data, Tensor) or pixels.data.dtype != "uint8":
        return fields
    shape = pixels.data.shape
    values = array_of(pixels.data).reshape(shape[0] if len(shape) == 2 else 1, 3, -1)
    ranged = np.empty(values.shape, "float32")
    for channel in range(3):
        np.take(tones[channel], values[:, channel], out=ranged[:, channel])
    return {**fields, name: Field(tensor_of(ranged.reshape(shape)), pixels.kind)}


def cut_patches(image: Any, patch_size: int, merge_size: int, temporal_patch_size: int) -> tuple[Any, int, int]:
    """A picture [channel, height, width] as rows of patches, in the order in which the model merges them; and how many down and across.

    What the processor's own method does, on bytes: that one makes floats first, which is four times the memory and most of the time.
    """
    import numpy as np

    channels, height, width = image.shape
    down, across = height // patch_size, width // patch_size
    blocks = image.reshape(
        channels, down // merge_size, merge_size, patch_size, across // merge_size, merge_size, patch_size
    ).transpose(1, 4, 2, 5, 0, 3, 6)
    still = np.broadcast_to(blocks[..., None, :, :], (*blocks.shape[:5], temporal_patch_size, patch_size, patch_size))
    return still.reshape(down * across, channels * temporal_patch_size * patch_size**2), down, across


def _as_bytes(pixels: Field) -> Field:
    assert isinstance(pixels.data, Tensor)
    if pixels.data.dtype == "uint8":
        return pixels
    return Field(tensor_of(array_of(pixels.data).astype("uint8")), pixels.kind)


def find_tones(processor: Any, changed: Mapping[str, Any]) -> Any:
    """What rescaling and normalising make of the values 0 to 255: the processor's own arithmetic, done once."""
    import numpy as np

    def setting(name: str) -> Any:
        return changed.get(name, getattr(processor, name, None))

    ramp: Any = np.broadcast_to(np.arange(256, dtype="uint8"), (3, 1, 256))
    if setting("do_rescale"):
        ramp = processor.rescale(ramp, setting("rescale_factor"))
    if setting("do_normalize"):
        ramp = processor.normalize(ramp, setting("image_mean"), setting("image_std"))
    return np.ascontiguousarray(ramp.reshape(3, 256), "float32")


def _wishes(io_kwargs: Mapping[str, Json]) -> tuple[str | None, tuple[int, ...]]:
    """Colour mode and background of `media_io_kwargs.image`."""
    mode = io_kwargs.get("image_mode", "RGB")
    background = tuple(io_kwargs.get("rgba_background_color", WHITE))
    if mode not in (None, "RGB", "L", "RGBA"):
        raise BadRequest("image_mode must be null, 'RGB', 'RGBA' or 'L'.", "media_io_kwargs.image.image_mode")
    if len(background) != 3 or not all(type(part) is int and 0 <= part <= 255 for part in background):
        raise BadRequest(
            "rgba_background_color must be a list or tuple of 3 integers in the range [0, 255].",
            "media_io_kwargs.image.rgba_background_color",
        )
    return mode, background


def _on_background(picture: Image, background: tuple[int, ...]) -> Image:
    from PIL import Image

    flat = Image.new("RGB", picture.size, background)
    flat.paste(picture, mask=picture.getchannel("A"))
    return flat


def _damaged() -> BadRequest:
    return BadRequest("The image is damaged or cut short.", "messages")
