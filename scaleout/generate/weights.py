"""Opens a model with transformers' own definition and our attention in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from scaleout.errors import ConfigError
from scaleout.generate.attention import PagedAttention
from scaleout.generate.gguf_once import remembering
from scaleout.generate.kept_rows import keep_wanted_rows
from scaleout.generate.options import EngineOptions, ModelSource, dtype_name
from scaleout.generate.vision_families import family_of, towers_of


def pick_device(wanted: str) -> torch.device:
    """`auto` is the GPU where there is one; `cuda:1` the second."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = wanted.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise ConfigError(f"--device {wanted}: choose auto, cpu, cuda or cuda:N")
    if kind == "cuda" and torch.cuda.device_count() <= int(number or 0):
        raise ConfigError(
            f"--device {wanted}: torch finds {torch.cuda.device_count()} CUDA devices; use --device cpu, or a torch built with CUDA"
        )
    return torch.device(wanted)


def pick_dtype(wanted: str, config: Mapping[str, Any]) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, dtype_name(wanted, config))
    return dtype


def open_model(
    files: ModelSource, options: EngineOptions, attention: PagedAttention, device: torch.device
) -> PreTrainedModel:
    """Weights from safetensors or GGUF (dequantised). The attention of every layer of text calls `attention`."""
    name = f"scaleout_paged_{uuid4().hex[:8]}"
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    family = family_of(files.config)
    auto = AutoModelForCausalLM if family is None else getattr(transformers, family.model)
    towers = dict.fromkeys(("", *towers_of(files.config)), "sdpa")
    nested = "text_config" in (files.config.get("thinker_config") or files.config)
    attend: Any = name if family is None else {**towers, "text_config" if nested else "": name}
    how: dict[str, Any] = {"attn_implementation": attend, "dtype": pick_dtype(options.dtype, files.config)}
    if files.gguf is not None:
        with remembering():
            model = AutoModelForCausalLM.from_pretrained(
                files.gguf.parent, gguf_file=files.gguf.name, local_files_only=True, **how
            )
    elif files.folder is not None and has_weights(files.folder):
        model = auto.from_pretrained(files.folder, local_files_only=True, **how)
    else:
        model = auto.from_pretrained(files.name, revision=files.revision, **how)
    ready: PreTrainedModel = torch.nn.Module.to(model, device).train(False).requires_grad_(False)
    if family is not None:
        keep_wanted_rows(ready)
    return ready


def has_weights(folder: Path) -> bool:
    """False for a hub model of which only the small files were fetched."""
    return any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir())


def close_model(model: PreTrainedModel) -> None:
    """Takes the model's attention out of transformers' table, which would keep the cache alive."""
    ALL_ATTENTION_FUNCTIONS._global_mapping.pop(model.config.get_text_config()._attn_implementation, None)
