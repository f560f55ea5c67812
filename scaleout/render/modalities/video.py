"""Films: frames taken evenly out of them by PyAV, each resized as a picture, two of them to a patch.

For the Qwen-VL families whose prompts do not tell the time of each frame.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, frozen

from scaleout.core import Field, Json
from scaleout.core.features import Batched, Flat
from scaleout.core.media import MediaFile
from scaleout.errors import BadRequest, ConfigError
from scaleout.render.media_hash import Tagged
from scaleout.render.modalities.image import find_tones, in_range
from scaleout.render.modality import MediaLimits, MediaModel, MissingExtra, Processed, Run, Slots, tensor_of, token_of

EXTRA = "video"
FRAMES_A_SECOND = 2.0
LEAST_FRAMES = 4
SIZE = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
"""Pixels of a frame, where the model's files do not say."""
MAX_DECODED = 50_000
"""Frames that are decoded, kept or not: half an hour at 30 a second."""


@frozen
class VideoFamily:
    """`raw`: pixels travel as they are. `timed`: the model is told how many seconds a step of the grid lasts."""

    token: str
    before: str
    behind: str
    raw: bool = True
    timed: bool = True

    def slots(self, model: MediaModel) -> Slots:
        token = token_of(model, "video_token", self.token)
        return Slots(token, self.before + token + self.behind, token)


FAMILIES: Mapping[str, VideoFamily] = {
    "qwen2_vl": VideoFamily("<|video_pad|>", "<|vision_start|>", "<|vision_end|>", timed=False),
    "qwen2_5_vl": VideoFamily("<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "qwen2_5_omni": VideoFamily("<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>", raw=False),
}
"""By the model's type. Others write the time of each frame into the prompt."""


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
    return VideoModality(model, family, family.slots(model), processor, limits, find_tones(processor, {}))


@define(frozen=True)
class VideoModality:
    model: MediaModel
    family: VideoFamily
    slots: Slots
    processor: Any
    limits: MediaLimits
    tones: Any

    def content_key(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Any:
        return Tagged("video", file.data)

    def finish(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return in_range(fields, "pixel_values_videos", self.tones)

    def process(
        self, file: MediaFile, kwargs: Mapping[str, Json], io_kwargs: Mapping[str, Json], alone: bool
    ) -> Processed:
        import numpy as np

        frames, seconds = self._frames(file, io_kwargs, _read_size(kwargs))
        step = self.processor.temporal_patch_size
        frames += [frames[-1]] * (-len(frames) % step)
        patches, down, across = _cut(np.stack(frames), step, self.processor.patch_size, self.processor.merge_size)
        grid = (len(frames) // step, down, across)
        pixels = Field(tensor_of(patches), Flat([(0, len(patches), None)]))
        fields: dict[str, Field] = {"pixel_values_videos": pixels}
        if not self.family.raw:
            fields = dict(self.finish(fields))
        fields["video_grid_thw"] = Field(tensor_of(np.array(grid, "int64")), Batched(keep_on_cpu=True))
        if self.family.timed:
            lasts = np.float32(seconds / len(frames) * step)
            fields["second_per_grid_ts"] = Field(tensor_of(np.asarray(lasts)), Batched(keep_on_cpu=True))
        slots = grid[0] * down * across // self.processor.merge_size**2
        return Processed(fields, [Run(self.slots.slot, slots)], patches.nbytes)

    def _frames(self, file: MediaFile, io_kwargs: Mapping[str, Json], size: tuple[int, int]) -> tuple[list[Any], float]:
        """Evenly spaced frames, resized, [channel, height, width] of bytes; and how many seconds they stand for."""
        import av

        try:
            with av.open(io.BytesIO(file.data), format=_format(file.data)) as opened:
                if not opened.streams.video:
                    raise BadRequest("The file holds no film.")
                stream = opened.streams.video[0]
                stream.thread_type = "AUTO"
                seconds = self._length(opened, stream)
                count = self._count(seconds, io_kwargs)
                if stream.width * stream.height > self.limits.max_image_pixels:
                    raise BadRequest(
                        f"The film's frames have {stream.width} x {stream.height} pixels (--max-image-pixels)."
                    )
                most = min(self.limits.max_image_pixels // count, size[1])
                frames = [
                    self._resize(frame.to_ndarray(format="rgb24"), min(size[0], most), most)
                    for frame in _pick(opened, stream, seconds, count)
                ]
        except (av.error.FFmpegError, ValueError, OSError, EOFError) as error:
            raise BadRequest("The file is no film that can be read here (MP4, MOV, MKV, WebM, AVI).") from error
        if not frames:
            raise BadRequest("The film is damaged or cut short.")
        return frames, seconds

    def _length(self, opened: Any, stream: Any) -> float:
        import av

        if stream.duration and stream.time_base:
            seconds = float(stream.duration * stream.time_base)
        elif opened.duration:
            seconds = opened.duration / av.time_base
        else:
            raise BadRequest("The film does not say how long it is.")
        rate = float(stream.average_rate or 30)
        if not 0 < seconds * rate <= MAX_DECODED:
            raise BadRequest(f"The film has more than {MAX_DECODED} frames, or none.")
        return seconds

    def _count(self, seconds: float, io_kwargs: Mapping[str, Json]) -> int:
        """How many frames are taken: two a second, or as `media_io_kwargs.video` says; an even number within the bounds."""
        count, rate = io_kwargs.get("num_frames"), io_kwargs.get("fps", FRAMES_A_SECOND)
        if count is not None and not (type(count) is int and count > 0):
            raise BadRequest("num_frames must be a positive integer.", "media_io_kwargs.video.num_frames")
        if not (isinstance(rate, int | float) and 0 < rate <= 240):
            raise BadRequest("fps must be a positive number.", "media_io_kwargs.video.fps")
        wanted = count if count is not None else max(int(seconds * rate), LEAST_FRAMES)
        step = int(self.processor.temporal_patch_size)
        return max(min(wanted, self.limits.max_video_frames) // step, 1) * step

    def _resize(self, frame: Any, least: int, most: int) -> Any:
        from transformers.image_utils import SizeDict

        factor = self.processor.patch_size * self.processor.merge_size
        return self.processor.resize(
            frame.transpose(2, 0, 1),
            size=SizeDict(shortest_edge=least, longest_edge=most),
            resample=self.processor.resample,
            factor=factor,
        )


def _read_size(kwargs: Mapping[str, Json]) -> tuple[int, int]:
    """Least and most pixels of a frame: `size`, or `min_pixels` and `max_pixels`. Raises `BadRequest` for other arguments."""
    given = kwargs.get("size") or {}
    unknown = sorted(kwargs.keys() - {"size", "min_pixels", "max_pixels"})
    if unknown or not isinstance(given, dict):
        raise BadRequest("Of films only the size of frames can be set.", f"mm_processor_kwargs.{(*unknown, 'size')[0]}")
    least = kwargs.get("min_pixels", given.get("shortest_edge", SIZE["shortest_edge"]))
    most = kwargs.get("max_pixels", given.get("longest_edge", SIZE["longest_edge"]))
    if not (type(least) is int and type(most) is int and most > 0):
        raise BadRequest("Pixels are counted in positive integers.", "mm_processor_kwargs.size")
    return min(max(least, 1), most), most


def _pick(opened: Any, stream: Any, seconds: float, count: int) -> Iterator[Any]:
    """The first frame at or behind each of `count` evenly spaced times; the last one again where the film ends early."""
    taken = 0
    last = None
    rate = float(stream.average_rate or 30)
    for i, frame in enumerate(opened.decode(stream)):
        if i >= MAX_DECODED:
            raise BadRequest(f"The film has more than {MAX_DECODED} frames.")
        last = frame
        at = i / rate if frame.time is None else frame.time
        while taken < count and at >= taken * seconds / count - 1e-6:
            taken += 1
            yield frame
        if taken == count:
            return
    for _ in range(count - taken if last is not None else 0):
        yield last


def _format(data: bytes) -> str:
    """The container by its first bytes: left to itself the library tries hundreds, playlists of other files among them."""
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    raise BadRequest("The file is no film that can be read here (MP4, MOV, MKV, WebM, AVI).")


def _cut(frames: Any, step: int, patch: int, merge: int) -> tuple[Any, int, int]:
    """Frames [time, channel, height, width] as rows of patches that hold `step` frames each."""
    times, channels, height, width = frames.shape
    down, across = height // patch, width // patch
    blocks = frames.reshape(
        times // step, step, channels, down // merge, merge, patch, across // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return blocks.reshape(times // step * down * across, channels * step * patch * patch), down, across
