"""How each model family writes a picture: its placeholder, what that becomes, and which inputs the model gets of it.

Sources: the processors of transformers for tokens and arithmetic, the reference peer's field kinds for the wire.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from scaleout.core import Field, Tensor
from scaleout.core.features import Batched, Flat, Shared
from scaleout.render.modalities.phi4_pictures import CropProcessor
from scaleout.render.modality import Expansion, MediaModel, Run, Slots, tensor_of, token_of

Inputs = Mapping[str, Any]
"""What an image processor returns for one picture."""


def _no_arguments(model: MediaModel) -> dict[str, Any]:
    return {}


@frozen
class ImageFamily:
    """One row of the table. `nested`: the processor wants pictures as lists of lists, one list for each prompt.

    `counts_pictures`: what it does depends on whether there is more than one. `call`: arguments that the model's processor always gives
    to its image processor. `raw`: whether pixels travel as they are, for the engine to bring them into the model's range. `own`: makes an
    image processor where transformers has none that works without torch.
    """

    slots: Callable[[MediaModel], Slots]
    expand: Callable[[MediaModel, Any, Inputs], Expansion]
    fields: Callable[[MediaModel, Inputs], dict[str, Field]]
    call: Callable[[MediaModel], dict[str, Any]] = _no_arguments
    nested: bool = False
    counts_pictures: bool = False
    raw: Callable[[MediaModel], bool] = lambda model: False
    own: Callable[[MediaModel], Any] | None = None


def _one_token(default: str, before: str = "", behind: str = "") -> Callable[[MediaModel], Slots]:
    """The placeholder is the slot itself, many times over."""

    def slots(model: MediaModel) -> Slots:
        token = token_of(model, "image_token", default)
        return Slots(token, before + token + behind, token)

    return slots


def _array(value: Any, dtype: str | None = None) -> Tensor:
    import numpy as np

    return tensor_of(np.asarray(value, dtype=dtype))


def _flat(value: Any, dtype: str | None = None) -> Field:
    tensor = _array(value, dtype)
    return Field(tensor, Flat([(0, tensor.shape[0], None)]))


def _number(value: int) -> Field:
    return Field(_array(value, "int64"), Batched(keep_on_cpu=True))


# ---------------------------------------------------------------------------------------------- grids of patches


def _grid_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    grid = Field(_array(inputs["image_grid_thw"][0], "int64"), Batched(keep_on_cpu=True))
    return {"pixel_values": _flat(inputs["pixel_values"]), "image_grid_thw": grid}


def _grid_is_raw(model: MediaModel) -> bool:
    return "thinker_config" not in model.config


def _grid(token: str, before: str, behind: str) -> ImageFamily:
    """A slot for each square of patches that are merged into one."""

    def expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
        patches = math.prod(int(length) for length in inputs["image_grid_thw"][0])
        return [Run(token_of(model, "image_token", token), patches // processor.merge_size**2)]

    return ImageFamily(_one_token(token, before, behind), expand, _grid_fields, raw=_grid_is_raw)


# ---------------------------------------------------------------------------------------------- crops of one size


def _gemma_slots(model: MediaModel) -> Slots:
    start = token_of(model, "boi_token", "<start_of_image>")
    return Slots(start, start, token_of(model, "image_token", "<image_soft_token>"))


def _gemma_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    slots = _gemma_slots(model)
    length = int(model.setting("image_seq_length", model.config.get("mm_tokens_per_image", 256)))
    end = token_of(model, "eoi_token", "<end_of_image>")
    whole: Expansion = [f"\n\n{slots.token}", Run(slots.slot, length), f"{end}\n\n"]
    crops = int(inputs["num_crops"][0])
    if not crops:
        return whole
    pieces = ["Here is the original image ", *whole, " and here are some crops to help you see better "]
    for i in range(crops):
        pieces += [" ", *whole] if i else whole
    return pieces


def _gemma_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    pixels = _flat(inputs["pixel_values"], "float32")
    return {"pixel_values": pixels, "num_patches": _number(int(inputs["num_crops"][0]) + 1)}


def _gemma_call(model: MediaModel) -> dict[str, Any]:
    return {"do_pan_and_scan": bool(model.preprocessor_config.get("do_pan_and_scan") or False)}


def _intern_slots(model: MediaModel) -> Slots:
    token = token_of(model, "context_image_token", "<IMG_CONTEXT>")
    return Slots(token, token, token)


def _intern_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    length = int(model.setting("image_seq_length", model.config.get("image_seq_length", 256)))
    start, end = token_of(model, "start_image_token", "<img>"), token_of(model, "end_image_token", "</img>")
    return [start, Run(_intern_slots(model).slot, length * int(inputs["num_patches"][0])), end]


def _intern_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    fields = {
        "pixel_values": _flat(inputs["pixel_values"], "float32"),
        "image_num_patches": _number(int(inputs["num_patches"][0])),
    }
    if isinstance(model.config.get("image_token_id"), int):
        shared = Shared(1, keep_on_cpu=True)
        fields["image_token_id"] = Field(_array(model.config["image_token_id"], "int64"), shared)
    return fields


def _intern_call(model: MediaModel) -> dict[str, Any]:
    return {"crop_to_patches": True}


def _idefics_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    fake, token = _fake(model), token_of(model, "image_token", "<image>")
    whole = token_of(model, "global_image_token", "<global-img>")
    length = int(model.setting("image_seq_len", 169))
    rows, columns = int(inputs["rows"][0][0]), int(inputs["cols"][0][0])
    pieces: list[str | Run] = []
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            pieces += [f"{fake}<row_{row}_col_{column}>", Run(token, length)]
        pieces.append("\n")
    before = "\n" if pieces else ""
    return [*pieces, f"{before}{fake}{whole}", Run(token, length), fake]


def _fake(model: MediaModel) -> str:
    return token_of(model, "fake_image_token", "<fake_token_around_image>")


def _idefics_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    pixels = _flat(inputs["pixel_values"][0], "float32")
    fields = {"pixel_values": pixels}
    if "pixel_attention_mask" in inputs:
        fields["pixel_attention_mask"] = _flat(inputs["pixel_attention_mask"][0], "int64")
    assert isinstance(pixels.data, Tensor)
    return {**fields, "num_patches": _number(pixels.data.shape[0])}


def _idefics_call(model: MediaModel) -> dict[str, Any]:
    return {"return_row_col_info": True}


# ---------------------------------------------------------------------------------------------- one picture, one tensor


def _llava_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    height, width = inputs["pixel_values"][0].shape[-2:]
    patch = int(model.setting("patch_size", 14))
    count = (height // patch) * (width // patch) + int(model.setting("num_additional_image_tokens", 0))
    if model.setting("vision_feature_select_strategy", None) == "default":
        count -= 1
    return [Run(token_of(model, "image_token", "<image>"), count)]


def _llava_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    return {"pixel_values": Field(_array(inputs["pixel_values"][0], "float32"), Batched())}


def _pixtral_step(model: MediaModel) -> int:
    return int(model.setting("patch_size", 16)) * int(model.setting("spatial_merge_size", 1))


def _pixtral_slots(model: MediaModel) -> Slots:
    token = str(model.setting("image_token", "[IMG]"))
    return Slots(token, token, token)


def _pixtral_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    height, width = (int(length) // _pixtral_step(model) for length in inputs["image_sizes"][0])
    row = Run(_pixtral_slots(model).slot, width)
    line_end, end = model.setting("image_break_token", "[IMG_BREAK]"), model.setting("image_end_token", "[IMG_END]")
    return [piece for i in range(height) for piece in (row, end if i == height - 1 else line_end)]


def _pixtral_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    sizes = Field(_array(inputs["image_sizes"][0], "int64"), Batched(keep_on_cpu=True))
    return {**_llava_fields(model, inputs), "image_sizes": sizes}


def _pixtral_call(model: MediaModel) -> dict[str, Any]:
    return {"patch_size": {"height": _pixtral_step(model), "width": _pixtral_step(model)}}


# ---------------------------------------------------------------------------------------------- LLaVA-OneVision


def _onevision_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    slots = int(model.setting("num_image_tokens", 729))
    token = token_of(model, "image_token", "<image>")
    tiled = inputs["batch_num_images"][0] == 1
    # One of several is shown whole alone, with one more slot for the end of its line.
    count = slots + (_tiled_slots(model, processor, inputs, math.isqrt(slots)) if tiled else 1)
    if model.setting("vision_feature_select_strategy", None) == "default":
        count -= 1
    return [Run(token, count)]


def _tiled_slots(model: MediaModel, processor: Any, inputs: Inputs, side: int) -> int:
    """Slots of a picture's tiles, without the rows and columns that are padding, with one more at the end of each row."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = (int(length) for length in inputs["image_sizes"][0])
    tile_height, tile_width = inputs["pixel_values"][0][0].shape[-2:]
    best_height, best_width = select_best_resolution((height, width), processor.image_grid_pinpoints)
    rows: int = side * (best_height // tile_height)
    columns: int = side * (best_width // tile_width)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    most = int(str(model.setting("vision_aspect_ratio", "anyres_max_9")).removeprefix("anyres_max_"))
    ratio = math.sqrt(rows * columns / (most * side**2))
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return rows * columns + rows


def _onevision_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    return {
        "pixel_values": Field(_array(inputs["pixel_values"][0], "float32"), Batched()),
        "image_sizes": Field(_array(inputs["image_sizes"][0], "int64"), Batched(keep_on_cpu=True)),
    }


# ---------------------------------------------------------------------------------------------- Phi-4-multimodal


def _phi4_expand(model: MediaModel, processor: Any, inputs: Inputs) -> Expansion:
    return [Run(token_of(model, "image_token", "<|image|>"), int(inputs["num_img_tokens"][0]))]


def _phi4_fields(model: MediaModel, inputs: Inputs) -> dict[str, Field]:
    return {
        "image_pixel_values": Field(_array(inputs["image_pixel_values"][0]), Batched()),
        "image_attention_mask": Field(_array(inputs["image_attention_mask"][0]), Batched()),
        "image_sizes": Field(_array(inputs["image_sizes"][0]), Batched(keep_on_cpu=True)),
        "num_img_tokens": _number(int(inputs["num_img_tokens"][0])),
    }


# ---------------------------------------------------------------------------------------------- the table


_IDEFICS = ImageFamily(_one_token("<image>"), _idefics_expand, _idefics_fields, _idefics_call, nested=True)

_QWEN = _grid("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
_GLM = _grid("<|image|>", "<|begin_of_image|>", "<|end_of_image|>")

FAMILIES: Mapping[str, ImageFamily] = {
    "Qwen2VLProcessor": _QWEN,
    "Qwen2_5_VLProcessor": _QWEN,
    "Qwen3VLProcessor": _QWEN,
    "Qwen2_5OmniProcessor": _grid("<|IMAGE|>", "<|vision_bos|>", "<|vision_eos|>"),
    "Glm4vProcessor": _GLM,
    "Glm46VProcessor": _GLM,
    "Gemma3Processor": ImageFamily(_gemma_slots, _gemma_expand, _gemma_fields, _gemma_call),
    "InternVLProcessor": ImageFamily(_intern_slots, _intern_expand, _intern_fields, _intern_call),
    "Idefics3Processor": _IDEFICS,
    "SmolVLMProcessor": _IDEFICS,
    "LlavaProcessor": ImageFamily(_one_token("<image>"), _llava_expand, _llava_fields),
    "LlavaOnevisionProcessor": ImageFamily(
        _one_token("<image>"), _onevision_expand, _onevision_fields, nested=True, counts_pictures=True
    ),
    "Phi4MultimodalProcessor": ImageFamily(_one_token("<|image|>"), _phi4_expand, _phi4_fields, own=CropProcessor.of),
    "PixtralProcessor": ImageFamily(
        _pixtral_slots,
        _pixtral_expand,
        _pixtral_fields,
        _pixtral_call,
        raw=lambda model: model.config.get("model_type") == "mistral3",
    ),
}
"""By the name of the model's processor in transformers."""

PROCESSOR_OF = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen2_5_omni": "Qwen2_5OmniProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen3_vl_moe": "Qwen3VLProcessor",
    "qwen3_5": "Qwen3VLProcessor",
    "qwen3_5_moe": "Qwen3VLProcessor",
    "glm4v": "Glm4vProcessor",
    "glm4v_moe": "Glm4vProcessor",
    "glm46v": "Glm46VProcessor",
    "gemma3": "Gemma3Processor",
    "internvl": "InternVLProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "SmolVLMProcessor",
    "llava": "LlavaProcessor",
    "llava_onevision": "LlavaOnevisionProcessor",
    "phi4_multimodal": "Phi4MultimodalProcessor",
    "pixtral": "PixtralProcessor",
    "mistral3": "PixtralProcessor",
}
"""Where no file names the processor: by the model's type."""


def _name(model: MediaModel) -> str:
    """The row for a model. Its type has to be known too: text models come with files of others' processors."""
    by_type = PROCESSOR_OF.get(str(model.config.get("model_type")), "")
    named = model.processor_class
    return named if by_type and named is not None and named in FAMILIES else by_type


def family_of(model: MediaModel) -> ImageFamily | None:
    """The row for a model that takes pictures and whose processor is known here; None for others."""
    has_vision = "vision_config" in model.config or "thinker_config" in model.config
    return FAMILIES.get(_name(model)) if has_vision else None
