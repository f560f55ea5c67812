"""Films: frames taken out of them by PyAV, each resized as a picture, some of them together to a patch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define

from scaleout.core import Field, Json
from scaleout.core.features import Batched, Flat
from scaleout.core.media import MediaFile
from scaleout.errors import BadRequest, ConfigError
from scaleout.render.media_hash import Tagged
from scaleout.render.modalities.image import find_tones, in_range
from scaleout.render.modalities.video_families import FAMILIES, Film, Settings, VideoFamily, Wanted
from scaleout.render.modality import MediaLimits, MediaModel, MissingExtra, Processed, Slots, size_of, tensor_of

EXTRA = "video"
MAX_DECODED = 50_000
"""Frames that are decoded, kept or not: half an hour at 30 a second."""
NO_FILM = "The file is no film that can be read here (MP4, MOV, MKV, WebM, AVI)."


def open_modality(model: MediaModel, limits: MediaLimits) -> VideoModality | None:
    """The model's way with films; None where it takes none. Raises `MissingExtra`, `ConfigError`."""
    family = FAMILIES.get(str(model.config.get("model_type")))
    if family is None:
        return None
    try:
        import av
        from transformers import AutoImageProcessor
    except ImportError:
        raise MissingExtra(EXTRA) from None
    av.logging.set_level(None)  # what a file is called or holds is nobody's business in a log
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                str(model.folder), backend="pil", local_files_only=True, trust_remote_code=False
            )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"The image processor of {model.name!r} cannot be used: {error}") from error
    settings = _settings(model, family, processor)
    return VideoModality(
        model, family, family.slots(model), processor, limits, settings, find_tones(processor, settings)
    )


def _settings(model: MediaModel, family: VideoFamily, processor: Any) -> dict[str, Any]:
    """What the video processor of the model does: as its own file says, else as its family does, cut like pictures."""
    nested = model.processor_config.get("video_processor")
    given = nested if isinstance(nested, dict) else model.video_preprocessor_config
    cut = {name: getattr(processor, name) for name in ("patch_size", "temporal_patch_size", "merge_size", "resample")}
    settings = {**cut, **family.defaults, **{name: value for name, value in given.items() if value is not None}}
    size = settings["size"]
    edges = {"shortest_edge": given.get("min_pixels"), "longest_edge": given.get("max_pixels")}
    settings["size"] = {**size, **{name: edge for name, edge in edges.items() if edge is not None}}
    return {**settings, **family.fixed}


@define(frozen=True)
class VideoModality:
    model: MediaModel
    family: VideoFamily
    slots: Slots
    processor: Any
    limits: MediaLimits
    settings: Settings
    tones: Any

    def content_key(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Any:
        return Tagged("video", file.data)

    def finish(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return in_range(fields, "pixel_values_videos", self.tones)

    def process(
        self, file: MediaFile, kwargs: Mapping[str, Json], io_kwargs: Mapping[str, Json], alone: bool
    ) -> Processed:
        import numpy as np

        settings = {**self.settings, "size": _read_size(kwargs, self.settings["size"])}
        wanted = _read_wishes(io_kwargs)
        frames, numbers, film = self._frames(file, wanted, settings)
        step, patch, merge = (int(settings[name]) for name in ("temporal_patch_size", "patch_size", "merge_size"))
        frames += [frames[-1]] * (-len(frames) % step)
        patches, down, across = _cut(np.stack(frames), step, patch, merge)
        grid = (len(frames) // step, down, across)
        fields = {"pixel_values_videos": Field(tensor_of(patches), Flat([(0, len(patches), None)]))}
        if not self.family.raw:
            fields = dict(self.finish(fields))
        fields["video_grid_thw"] = Field(tensor_of(np.array(grid, "int64")), Batched(keep_on_cpu=True))
        times = _times(numbers, film, step, self.family.middle)
        fields |= self.family.told(times, film.seconds / len(numbers) * step, step / (wanted.rate or settings["fps"]))
        expansion = self.family.expand(self.model, self.slots, down * across // merge**2, times)
        return Processed(fields, expansion, sum(size_of(one.data) for one in fields.values()))

    def _frames(self, file: MediaFile, wanted: Wanted, settings: Settings) -> tuple[list[Any], Sequence[int], Film]:
        """Some of the film's frames, resized, [channel, height, width] of bytes; and their numbers in the film."""
        import av

        try:
            opened: Any
            with av.open(io.BytesIO(file.data), format=_format(file.data)) as opened:
                if not opened.streams.video:
                    raise BadRequest("The file holds no film.")
                stream = opened.streams.video[0]
                stream.thread_type = "AUTO"
                film = _measure(opened, stream)
                numbers = self._thin(self.family.pick(film, settings, wanted), int(settings["temporal_patch_size"]))
                self._check_pixels(stream.width, stream.height)
                size = self._fit(len(numbers), stream.height, stream.width, settings)
                frames = []
                for frame in _pick(opened.decode(stream), numbers):
                    self._check_pixels(frame.width, frame.height)
                    frames.append(_resize(frame, size, settings["resample"]))
        except (av.error.FFmpegError, ValueError, OSError, EOFError) as error:
            raise BadRequest(NO_FILM) from error
        if not frames:
            raise BadRequest("The film is damaged or cut short.")
        return frames, numbers, film

    def _check_pixels(self, width: int, height: int) -> None:
        if width * height > self.limits.max_image_pixels:
            raise BadRequest(f"The film's frames have {width} x {height} pixels (--max-image-pixels).")

    def _thin(self, numbers: Sequence[int], step: int) -> Sequence[int]:
        """Not more frames than the operator allows."""
        most = max(self.limits.max_video_frames // step, 1) * step
        return numbers if len(numbers) <= most else [numbers[i * len(numbers) // most] for i in range(most)]

    def _fit(self, frames: int, height: int, width: int, settings: Settings) -> tuple[int, int]:
        """The size of a frame, all of them together within the operator's bound of pixels."""
        if not (height and width):
            raise BadRequest("The film does not say how large it is.")
        size = settings["size"]
        most = min(size["longest_edge"], self.limits.max_image_pixels // (frames if self.family.each_frame else 1))
        bounded = {"shortest_edge": min(size["shortest_edge"], most), "longest_edge": most}
        try:
            return self.family.fit(frames, height, width, {**settings, "size": bounded})
        except ValueError as error:
            raise BadRequest(f"The film cannot be prepared for this model: {error}") from error


def _measure(opened: Any, stream: Any) -> Film:
    import av

    rate = stream.average_rate or 30
    frames = stream.frames
    if not frames and stream.duration and stream.time_base:
        frames = round(float(stream.duration * stream.time_base * rate))
    elif not frames and opened.duration:
        frames = round(float(opened.duration * rate / av.time_base))
    if not (0 < frames <= MAX_DECODED and rate > 0):
        raise BadRequest(f"The film has more than {MAX_DECODED} frames, or does not say how many.")
    return Film(frames, float(rate), float(frames / rate))


def _read_size(kwargs: Mapping[str, Json], size: Mapping[str, int]) -> dict[str, int]:
    """Least and most pixels: `size`, or `min_pixels` and `max_pixels`. Raises `BadRequest` for other arguments."""
    given = kwargs.get("size") or {}
    unknown = sorted(kwargs.keys() - {"size", "min_pixels", "max_pixels"})
    if unknown or not isinstance(given, dict):
        raise BadRequest("Of films only the size of frames can be set.", f"mm_processor_kwargs.{(*unknown, 'size')[0]}")
    least = kwargs.get("min_pixels", given.get("shortest_edge", size["shortest_edge"]))
    most = kwargs.get("max_pixels", given.get("longest_edge", size["longest_edge"]))
    if not (type(least) is int and type(most) is int and most > 0):
        raise BadRequest("Pixels are counted in positive integers.", "mm_processor_kwargs.size")
    return {"shortest_edge": min(max(least, 1), most), "longest_edge": most}


def _read_wishes(io_kwargs: Mapping[str, Json]) -> Wanted:
    """`fps` and `num_frames` of `media_io_kwargs.video`, of which the latter goes first."""
    count, rate = io_kwargs.get("num_frames"), io_kwargs.get("fps")
    if count is not None and not (type(count) is int and count > 0):
        raise BadRequest("num_frames must be a positive integer.", "media_io_kwargs.video.num_frames")
    if rate is not None and not (type(rate) in (int, float) and 0 < rate <= 240):
        raise BadRequest("fps must be a positive number.", "media_io_kwargs.video.fps")
    return Wanted(rate, count)


def _pick(decoded: Iterator[Any], numbers: Sequence[int]) -> Iterator[Any]:
    """The frames of these ascending numbers; the last one again where the film ends early."""
    taken = 0
    last = None
    for i, frame in enumerate(decoded):
        if i >= MAX_DECODED:
            raise BadRequest(f"The film has more than {MAX_DECODED} frames.")
        last = frame
        while taken < len(numbers) and numbers[taken] <= i:
            taken += 1
            yield frame
        if taken == len(numbers):
            return
    for _ in range(len(numbers) - taken if last is not None else 0):
        yield last


def _resize(frame: Any, size: tuple[int, int], resample: int) -> Any:
    """[channel, height, width] of bytes."""
    import numpy as np

    return np.asarray(frame.to_image().resize((size[1], size[0]), resample)).transpose(2, 0, 1)


def _times(numbers: Sequence[int], film: Film, step: int, middle: bool) -> list[float]:
    """When each step of frames begins, or the middle between its first frame and its last, in seconds."""
    padded = [*numbers, *[numbers[-1]] * (-len(numbers) % step)]
    firsts = [number / film.rate for number in padded[::step]]
    lasts = [number / film.rate for number in padded[step - 1 :: step]]
    return [(first + last) / 2 for first, last in zip(firsts, lasts, strict=True)] if middle else firsts


def _format(data: bytes) -> str:
    """The container by its first bytes: left to itself the library tries hundreds, playlists of other files among them."""
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    raise BadRequest(NO_FILM)


def _cut(frames: Any, step: int, patch: int, merge: int) -> tuple[Any, int, int]:
    """Frames [time, channel, height, width] as rows of patches that hold `step` frames each."""
    times, channels, height, width = frames.shape
    down, across = height // patch, width // patch
    blocks = frames.reshape(
        times // step, step, channels, down // merge, merge, patch, across // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return blocks.reshape(times // step * down * across, channels * step * patch * patch), down, across
