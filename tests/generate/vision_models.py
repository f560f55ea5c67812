"""Small random models that see: a family's folder with weights, its own processor's tensors, and what transformers generates of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from asking import Source
from attrs import evolve, frozen
from media_files import data_url, picture, url_of

from scaleout.config import Mode, ModeConfig
from scaleout.core import ChatRequest, Features, GenerateRequest, MediaFeature, Message, Part
from scaleout.core.media import MediaSet
from scaleout.generate.feature_tensors import joined
from scaleout.generate.vision_families import FAMILIES as ENGINE_FAMILIES
from scaleout.pipeline.stages import Front, open_front
from scaleout.render.modalities.phi4_pictures import CropProcessor
from scaleout.render.modality import MediaModel
from scaleout.tokenizer import load_model_files
from tests.render.mm_models import FAMILIES, PIECES, build

END = 5
"""An id that the random models hardly ever choose."""

LONGEST = {"phi4_multimodal": 2048}
"""Tokens of a sequence, where a picture takes more slots than usual."""

BENT = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v")
"""Families whose positions depend on the pictures."""

_GLM = {
    "text_config": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "mrope_section": [1, 1, 2],
        },
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
        "intermediate_size": 64,
        "image_size": 56,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}

PHI4 = ("image_pixel_values", "image_sizes", "image_attention_mask")

SMALLER: Mapping[str, Mapping[str, Any]] = {
    # A window shorter than a picture, in one layer of two.
    "gemma3": {
        "text_config": {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
        },
        "tie_word_embeddings": False,
    },
    "pixtral": {"vision_feature_select_strategy": "full", "vision_feature_layer": -1},
    "mistral3": {"vision_feature_layer": -1},
    "glm4v": _GLM,
    "glm46v": _GLM,
}
"""What the configurations need beside what rendering needs."""


@frozen(eq=False, slots=False)
class Seeing:
    """One family's model. `folder` has everything that a published model has."""

    name: str
    folder: Path
    front: Front
    files: Source

    @cached_property
    def model(self) -> Any:
        """transformers' own, without any of ours in it."""
        return class_of(self.name).from_pretrained(self.folder, dtype=torch.float32).eval()

    @cached_property
    def processor(self) -> Any:
        from transformers import AutoImageProcessor

        if self.name == "phi4_multimodal":  # transformers' own needs torchvision; ours is compared with it elsewhere
            return CropProcessor.of(MediaModel(self.name, self.folder, preprocessor_config={"dynamic_hd": 4}))
        return AutoImageProcessor.from_pretrained(self.folder, backend="pil")

    def render(self, *parts: Any) -> GenerateRequest:
        """Texts and pictures of one user message → ids and features."""
        messages = [Message("user", [as_part(part) for part in parts])]
        renderer = self.front.renderer
        return renderer.finish(renderer.render_chat(ChatRequest(messages), request_id="r", media=MediaSet()))

    def tensors(self, *images: Any) -> dict[str, torch.Tensor]:
        """What the model's own image processor makes of pictures, as the model is given it."""
        options: dict[str, Any] = {}
        if self.name == "internvl":
            options["crop_to_patches"] = True
        if self.name == "mistral3":
            options["patch_size"] = {"height": 32, "width": 32}
        nested = self.name in ("llava_onevision", "idefics3", "smolvlm")
        if self.name == "phi4_multimodal":
            each = [self.processor([image]) for image in images]
            return {name: torch.from_numpy(np.concatenate([one[name] for one in each])) for name in PHI4}
        made = self.processor(images=[list(images)] if nested else list(images), return_tensors="pt", **options)
        return {name: value for name, value in made.items() if name not in ("num_crops", "num_patches", "rows", "cols")}

    @torch.inference_mode()
    def expected(
        self,
        token_ids: Sequence[int],
        tensors: Mapping[str, torch.Tensor],
        count: int,
        kinds_at: Sequence[tuple[int, int, int]] = (),
    ) -> list[int]:
        """The greedy continuation by transformers alone. `kinds_at`: between these places slots are of another kind than pictures."""
        ids = torch.tensor([list(token_ids)])
        made = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **tensors,
            **(self.kinds(ids, kinds_at) if tensors else {}),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=END,
        )
        found: list[int] = made[0, ids.shape[1] :].tolist()
        return found

    @torch.inference_mode()
    def prompt_logprobs(self, token_ids: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> list[float]:
        """Of each token behind the first, by transformers alone. They differ where greedy ids may be the same by chance."""
        ids = torch.tensor([list(token_ids)])
        logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **tensors, **self.kinds(ids)).logits
        found: list[float] = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    def kinds(self, ids: torch.Tensor, kinds_at: Sequence[tuple[int, int, int]] = ()) -> dict[str, torch.Tensor]:
        """What tells the model which tokens are slots, where it does not look itself."""
        slots = [getattr(self.model.config, name, None) for name in ("image_token_id", "video_token_id")]
        types = sum((ids == slot).long() for slot in slots if slot is not None)
        for start, end, kind in kinds_at:
            types[0, start:end] *= kind  # type: ignore[index]
        named = "mm_token_type_ids" if self.name in BENT else "token_type_ids" if self.name == "gemma3" else None
        return {named: types} if named else {}  # type: ignore[dict-item]


def as_part(part: Any) -> Part:
    """Text, a picture, or the file of a film or of a sound."""
    if isinstance(part, str):
        return Part("text", part)
    if not isinstance(part, bytes):
        return Part("image_url", None, {"image_url": {"url": data_url(part)}})
    kind = "audio" if part.startswith(b"RIFF") else "video"
    return Part(f"{kind}_url", None, {f"{kind}_url": {"url": url_of(part, f"{kind}/any")}})


def make(name: str, base: Path, folder: Path) -> Seeing:
    """The family's folder with random weights in it, large enough that a lost picture changes the answer."""
    from transformers import AutoConfig

    family = FAMILIES[name]
    merged = {
        key: {**family.config[key], **value} if isinstance(value, Mapping) else value
        for key, value in SMALLER.get(name, {}).items()
    }
    build(evolve(family, config={**family.config, **merged}), base, folder, PIECES)
    config = AutoConfig.from_pretrained(folder)
    config = getattr(config, "thinker_config", config)
    for part in (config, config.get_text_config()):
        part.eos_token_id, part.pad_token_id, part.bos_token_id = END, END, END
    torch.manual_seed(0)
    found = class_of(name)
    model = found(config) if issubclass(found, torch.nn.Module) else found.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    if name == "qwen2_5_omni":
        put_into_whole(folder)
    files = load_model_files(str(folder))
    front = open_front(ModeConfig(Mode.RENDER_ONLY, model=str(folder), served_model_names=("m",)), files)
    return Seeing(
        name, folder, front, Source(name, folder, files.config, LONGEST.get(name, 512), files.vocab_size, [END])
    )


def class_of(name: str) -> Any:
    """Of transformers, which opens the model."""
    import transformers

    return getattr(transformers, ENGINE_FAMILIES[FAMILIES[name].config["model_type"]].model)


def put_into_whole(folder: Path) -> None:
    """The part of a model that thinks, as it is published: beside parts that speak, which are left out here."""
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    save_file({f"thinker.{name}": value for name, value in load_file(weights).items()}, weights)
    config = folder / "config.json"
    config.write_text(json.dumps({"model_type": "qwen2_5_omni", "thinker_config": json.loads(config.read_text())}))


def view(seed: int, width: int = 120, height: int = 80) -> Any:
    return picture(width, height, seed=seed)


def changed(features: Features | None, **changes: Any) -> Features:
    """The features with their first item changed."""
    assert features is not None
    first, *others = features.items
    return evolve(features, items=[evolve(first, **changes), *others])


def known_by_hash(features: Features | None) -> Features:
    assert features is not None
    return Features([evolve(item, fields=None, source=None) for item in features.items])


def tensors_of(request: GenerateRequest, *kinds: str) -> dict[str, torch.Tensor]:
    """All features of a prompt, or those of some kinds, as they are in a batch."""
    assert request.features is not None
    items = [item for item in request.features.items if item.modality in kinds or not kinds]
    fields = [item.fields for item in items if item.fields is not None]
    names = dict.fromkeys(name for one in fields for name in one if name != "timestamps")  # which are for the prompt
    return {name: joined([one[name] for one in fields if name in one]) for name in names}


def first_item(request: GenerateRequest) -> MediaFeature:
    assert request.features is not None
    return request.features.items[0]
