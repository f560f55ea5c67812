"""How each model family takes films: which frames, how large, how its prompt tells their times, and which inputs the model gets.

Sources: the video processors of transformers for frames, sizes and words, the reference peer's field kinds for the wire.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from scaleout.core import Field
from scaleout.core.features import Batched
from scaleout.errors import BadRequest
from scaleout.render.modality import Expansion, MediaModel, Run, Slots, tensor_of, token_of

Settings = Mapping[str, Any]
"""What the model's files say of its video processor, over what its family does by itself."""

Grid = tuple[int, int, int]
"""Time, height and width in patches."""


@frozen
class Film:
    """A film before it is decoded: how many frames in all, how many a second, and how long it lasts."""

    frames: int
    rate: float
    seconds: float


@frozen
class Wanted:
    """What a request wishes: `rate` frames a second, or `count` frames."""

    rate: float | None = None
    count: int | None = None


Pick = Callable[[Film, Settings, Wanted], Sequence[int]]
"""The frames that are taken, by number, ascending; one may be there twice."""

Fit = Callable[[int, int, int, Settings], tuple[int, int]]
"""Frames, their height and width, and the settings → the size that they are given. Raises ValueError."""


@frozen
class VideoFamily:
    """`raw`: pixels travel as they are. `expand`: the slots of one step of the grid, the steps' times in seconds → the prompt's part.

    `told`: what the model is told beside pixels and grid, from the times of the steps, how long one lasts, and how long it would by
    the wished rate. `slot`: the token whose embedding is replaced, where it is not the placeholder.
    """

    token: str
    before: str
    behind: str
    defaults: Settings
    pick: Pick
    fit: Fit
    expand: Callable[[MediaModel, Slots, int, Sequence[float]], Expansion]
    told: Callable[[Sequence[float], float, float], dict[str, Field]] = lambda times, lasts, wished: {}
    middle: bool = False
    """Whether a step's time is the middle of its frames rather than the first one's."""
    each_frame: bool = False
    """Whether bounds of size count the pixels of one frame rather than those of all together."""
    fixed: Settings = field(factory=dict)
    """What holds whatever the model's files say: its processor passes it with every call."""
    raw: bool = True
    slot: tuple[str, str] | None = None

    def slots(self, model: MediaModel) -> Slots:
        token = token_of(model, "video_token", self.token)
        return Slots(token, self.before + token + self.behind, token_of(model, *self.slot) if self.slot else token)


# ---------------------------------------------------------------------------------------------- which frames


def _count_wanted(film: Film, settings: Settings, wanted: Wanted) -> float:
    rate = settings["fps"] if wanted.rate is None else wanted.rate
    return float(film.frames / film.rate * rate)


def _in_equal_parts(film: Film, settings: Settings, wanted: Wanted) -> Sequence[int]:
    """The first frame of each of so many equal parts; whole steps where there are frames enough."""
    import numpy as np

    step = settings["temporal_patch_size"]
    most = max(min(settings["max_frames"], film.frames) // step * step, 1)
    if wanted.count is None:
        count = math.floor(max(_count_wanted(film, settings, wanted), settings["min_frames"])) // step * step
    else:
        count = round(wanted.count / step) * step
    count = max(min(count, most), 1)
    return (np.arange(count) * (film.frames / count)).astype("float32").astype(int).tolist()  # type: ignore[no-any-return]


def _from_first_to_last(film: Film, settings: Settings, wanted: Wanted) -> Sequence[int]:
    import numpy as np

    count = wanted.count
    if count is None:
        count = max(int(_count_wanted(film, settings, wanted)), settings["min_frames"])
    count = max(min(count, settings["max_frames"], film.frames), 1)
    return np.linspace(0, film.frames - 1, count).round().astype(int).tolist()  # type: ignore[no-any-return]


def _by_the_clock(film: Film, settings: Settings, wanted: Wanted) -> Sequence[int]:
    """The frame that is shown next at each of so many times a second; an even number."""
    import numpy as np

    _refuse_count(wanted)
    rate = settings["fps"] if wanted.rate is None else wanted.rate
    longest = settings["max_duration"]
    if film.seconds <= longest:
        count = max(math.floor(film.seconds * rate), 1)
        numbers = [math.ceil(i * film.rate / rate) for i in range(count)]
    elif (count := int(longest * rate)) < film.frames:
        numbers = [math.ceil(time * film.rate) for time in np.linspace(0, film.seconds, count)]
    else:
        numbers = list(range(film.frames))
    return _even(list(dict.fromkeys(min(number, film.frames - 1) for number in numbers)))


def _by_length(film: Film, settings: Settings, wanted: Wanted) -> Sequence[int]:
    """More frames a second the shorter the film is, whatever is wished; an even number."""
    import numpy as np

    _refuse_count(wanted)
    step = settings["temporal_patch_size"]
    seconds = min(film.seconds, 2400)
    rate = 3 if seconds <= 30 else 1 if seconds <= 300 else 0.5
    count = min(int(seconds * rate * step), 640)
    numbers: list[int] = []
    due = 0.0
    for number in range(film.frames if film.frames >= count else 0):
        if number * (1 / film.rate) >= due:
            due += 1 / (step * rate)
            numbers.append(number)
            if due >= int(film.seconds):
                break
    if len(numbers) != count:
        first, last = (numbers[0], numbers[-1]) if 0 < len(numbers) < count else (0, film.frames - 1)
        numbers = np.linspace(first, last, count, dtype=int).tolist()
    return _even(list(dict.fromkeys(numbers)) or [0])


def _even(numbers: list[int]) -> list[int]:
    return numbers + numbers[-1:] if len(numbers) % 2 else numbers


def _refuse_count(wanted: Wanted) -> None:
    if wanted.count is not None:
        raise BadRequest(
            "This model's frames are chosen by time; num_frames is not for it.", "media_io_kwargs.video.num_frames"
        )


# ---------------------------------------------------------------------------------------------- how large


def _one_frame(frames: int, height: int, width: int, settings: Settings) -> tuple[int, int]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    size = settings["size"]
    return smart_resize(height, width, _factor(settings), size["shortest_edge"], size["longest_edge"])  # type: ignore[no-any-return]


def _all_frames(frames: int, height: int, width: int, settings: Settings) -> tuple[int, int]:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    step, factor = settings["temporal_patch_size"], _factor(settings)
    least, most = settings["size"]["shortest_edge"], settings["size"]["longest_edge"]
    if settings.get("cap_pixels_per_frame"):
        most = max(min(settings.get("max_video_tokens", 768) * factor**2, most // frames), int(least * 1.05)) * frames
    return smart_resize(max(frames, step), height, width, step, factor, least, most)  # type: ignore[no-any-return]


def _factor(settings: Settings) -> int:
    return int(settings["patch_size"] * settings["merge_size"])


# ---------------------------------------------------------------------------------------------- what the prompt says


def _only_slots(model: MediaModel, slots: Slots, count: int, times: Sequence[float]) -> Expansion:
    return [Run(slots.slot, count * len(times))]


def _times_in_front(model: MediaModel, slots: Slots, count: int, times: Sequence[float]) -> Expansion:
    start = token_of(model, "vision_start_token", "<|vision_start|>")
    end = token_of(model, "vision_end_token", "<|vision_end|>")
    run = Run(slots.slot, count)
    return [piece for time in times for piece in (f"<{time:.1f} seconds>{start}", run, end)]


def _times_behind(write: Callable[[float], str]) -> Callable[[MediaModel, Slots, int, Sequence[float]], Expansion]:
    def expand(model: MediaModel, slots: Slots, count: int, times: Sequence[float]) -> Expansion:
        run = Run(slots.slot, count)
        return [piece for time in times for piece in ("<|begin_of_image|>", run, f"<|end_of_image|>{write(time)}")]

    return expand


def _seconds(lasts: float) -> dict[str, Field]:
    import numpy as np

    return {"second_per_grid_ts": Field(tensor_of(np.asarray(np.float32(lasts))), Batched(keep_on_cpu=True))}


def _tell_length(times: Sequence[float], lasts: float, wished: float) -> dict[str, Field]:
    return _seconds(lasts)


def _tell_wish(times: Sequence[float], lasts: float, wished: float) -> dict[str, Field]:
    return _seconds(wished)


def _tell_times(times: Sequence[float], lasts: float, wished: float) -> dict[str, Field]:
    return {"timestamps": Field(list(times), Batched(keep_on_cpu=True))}


# ---------------------------------------------------------------------------------------------- the table

_FRAMES = {"fps": 2.0, "min_frames": 4, "max_frames": 768}
_QWEN_SIZE = {"size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}}
_QWEN3 = VideoFamily(
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    {**_FRAMES, "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}},
    _from_first_to_last,
    _all_frames,
    _times_in_front,
    _tell_times,
    middle=True,
)


def _glm(pick: Pick, write: Callable[[float], str]) -> VideoFamily:
    size = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000}
    defaults = {"fps": 2, "max_duration": 300, "size": size}
    expand = _times_behind(write)
    slot = ("image_token", "<|image|>")
    return VideoFamily(
        "<|video|>", "<|begin_of_video|>", "<|end_of_video|>", defaults, pick, _all_frames, expand, slot=slot
    )


def _qwen2(token: str, before: str, behind: str, **more: Any) -> VideoFamily:
    return VideoFamily(
        token,
        before,
        behind,
        {**_FRAMES, **_QWEN_SIZE},
        _in_equal_parts,
        _one_frame,
        _only_slots,
        each_frame=True,
        **more,
    )


_GLM4V = _glm(_by_the_clock, lambda time: str(int(time)))

FAMILIES: Mapping[str, VideoFamily] = {
    "qwen2_vl": _qwen2("<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "qwen2_5_vl": _qwen2("<|video_pad|>", "<|vision_start|>", "<|vision_end|>", told=_tell_length),
    "qwen2_5_omni": _qwen2(
        "<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>", told=_tell_wish, fixed=_QWEN_SIZE, raw=False
    ),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "glm4v": _GLM4V,
    "glm4v_moe": _GLM4V,
    "glm46v": _glm(_by_length, lambda time: f"{time:.1f} seconds"),
}
"""By the model's type."""
