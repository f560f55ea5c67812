"""Which transformers models see or hear, and how each takes its items. A model that is not here runs as a text model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from scaleout.generate.towers import hear_cut, hear_padded, see_crops


@frozen
class Intake:
    """How the items of one modality reach a model. `method` of its base model makes embeddings of `fields`, which bear its own names;
    a function is given the base model in front of them.

    `grid`: the field with the item's grid of patches [time, height, width], of which `merge` by `merge` become one slot. `needs_axis`:
    fields that the method wants with one more axis in front, that of the prompts of a batch. `token`: keys of the configuration with the
    id of a slot. `crops`: the first axis of every field counts crops, which the tower sees one by one. `frames`: the field with how many
    frames of a spectrogram an item has, of which four become one slot.
    """

    method: str | Callable[..., Any]
    fields: Sequence[str]
    token: Sequence[str]
    grid: str | None = None
    pixels: str = "pixel_values"
    needs_axis: Sequence[str] = ()
    crops: bool = False
    frames: str | None = None
    type_id: int = 1
    """The model's number for tokens of this kind, where positions depend on it."""


@frozen
class Family:
    """`model`: the class in transformers. `steering`: fields that positions are computed from, and what the model's function calls them.

    `closed`: the tokens of one picture see each other.
    `lone_crop`: a picture of one crop is not tiled, which the model is told by a number of pictures. `deep`: the tower also gives what
    early layers add at the slots.
    """

    intakes: Mapping[str, Intake]
    steering: Mapping[str, str] = field(factory=dict)
    model: str = "AutoModelForImageTextToText"
    closed: bool = False
    lone_crop: bool = False
    deep: bool = False


IMAGE_TOKEN = ("image_token_id", "image_token_index")

_GRID_IMAGE = Intake("get_image_features", ("pixel_values", "image_grid_thw"), IMAGE_TOKEN, grid="image_grid_thw")
_GRID_VIDEO = Intake(
    "get_video_features",
    ("pixel_values_videos", "video_grid_thw"),
    ("video_token_id",),
    grid="video_grid_thw",
    pixels="pixel_values_videos",
    type_id=2,
)
_FRAMES_OF_IMAGES = evolve(_GRID_VIDEO, token=IMAGE_TOKEN)
_GRIDS = {name: name for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")}
_PLAIN_CROPS = Intake("get_image_features", ("pixel_values",), IMAGE_TOKEN, crops=True)
_SIZED_IMAGE = Intake("get_image_features", ("pixel_values", "image_sizes"), IMAGE_TOKEN)
_NESTED_CROPS = Intake(
    "get_image_features",
    ("pixel_values", "pixel_attention_mask"),
    IMAGE_TOKEN,
    needs_axis=("pixel_values", "pixel_attention_mask"),
    crops=True,
)
_QWEN = Family({"image": _GRID_IMAGE, "video": _GRID_VIDEO}, _GRIDS)
_GLM = Family({"image": _GRID_IMAGE, "video": _FRAMES_OF_IMAGES}, _GRIDS)

_MASKED_CROPS = Intake(
    see_crops,
    ("image_pixel_values", "image_sizes", "image_attention_mask"),
    IMAGE_TOKEN,
    pixels="image_pixel_values",
)
_PADDED_SOUND = Intake(
    hear_padded, ("input_features", "feature_attention_mask"), ("audio_token_id",), pixels="input_features"
)
_CUT_SOUND = Intake(
    hear_cut,
    ("input_audio_features", "audio_feature_lengths"),
    ("audio_token_id",),
    pixels="input_audio_features",
    frames="audio_feature_lengths",
    type_id=3,
)
_OMNI = Family(
    {"image": _GRID_IMAGE, "video": _GRID_VIDEO, "audio": _CUT_SOUND},
    {**_GRIDS, "second_per_grid_ts": "second_per_grids", "audio_feature_lengths": "audio_seqlens"},
    "Qwen2_5OmniThinkerForConditionalGeneration",
)

FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": evolve(_QWEN, deep=True),
    "glm4v": _GLM,
    "glm46v": _GLM,
    "gemma3": Family({"image": _PLAIN_CROPS}, closed=True),
    "llava": Family({"image": _SIZED_IMAGE}),
    "llava_onevision": Family({"image": _SIZED_IMAGE}, lone_crop=True),
    "idefics3": Family({"image": _NESTED_CROPS}),
    "smolvlm": Family({"image": _NESTED_CROPS}),
    "internvl": Family({"image": _PLAIN_CROPS}),
    "mistral3": Family({"image": _SIZED_IMAGE}),
    "phi4_multimodal": Family({"image": _MASKED_CROPS}, model="AutoModelForCausalLM"),
    "qwen2_audio": Family({"audio": _PADDED_SOUND}, model="Qwen2AudioForConditionalGeneration"),
    "qwen2_5_omni": _OMNI,
}
"""By `model_type`. Each is compared with transformers' own generation in the tests."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """None for text models, and for models that see in a way unknown here."""
    return FAMILIES.get(str(config.get("model_type"))) if towers_of(config) else None


def towers_of(config: Mapping[str, Any]) -> Sequence[str]:
    """Keys of the parts of a model that see or hear."""
    parts = config.get("thinker_config") or config
    return [name for name in ("vision_config", "audio_config") if parts.get(name)]


def slot_id(config: Any, intake: Intake) -> int | None:
    """The id that stands where an embedding goes."""
    places = (config, getattr(config, "vision_config", None))
    ids = (getattr(place, name, None) for place in places for name in intake.token)
    return next((int(found) for found in ids if found is not None), None)
