"""Opens a model with transformers' own definition and our attention in it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from scaleout.errors import ConfigError
from scaleout.generate.attention import PagedAttention
from scaleout.generate.options import EngineOptions, ModelSource

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def pick_device(wanted: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("--device cuda: torch finds no CUDA device; use --device cpu, or install torch with CUDA")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and available) else "cpu")


def pick_dtype(wanted: str, config: Any) -> torch.dtype:
    """`auto` is what the weights are stored in, and float32 where the model does not say."""
    if wanted == "auto":
        stored = config.get("dtype") or config.get("torch_dtype") or "float32"
        return DTYPES.get(str(stored).removeprefix("torch."), torch.float32)
    if wanted not in DTYPES:
        raise ConfigError(f"--dtype {wanted}: choose auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def open_model(
    files: ModelSource, options: EngineOptions, attention: PagedAttention, device: torch.device
) -> PreTrainedModel:
    """Weights from safetensors or GGUF (dequantised). Every layer's attention calls `attention`."""
    name = f"scaleout_paged_{uuid4().hex[:8]}"
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    place: dict[str, Any] = {
        "attn_implementation": name,
        "local_files_only": True,
        "dtype": pick_dtype(options.dtype, files.config),
    }
    if files.gguf is not None:
        model = AutoModelForCausalLM.from_pretrained(files.gguf.parent, gguf_file=files.gguf.name, **place)
    elif files.folder is not None:
        model = AutoModelForCausalLM.from_pretrained(files.folder, **place)
    else:
        raise ConfigError(f"The model {files.name!r} has no local files to load weights from")
    ready: PreTrainedModel = torch.nn.Module.to(model, device).train(False).requires_grad_(False)
    return ready


def close_model(model: PreTrainedModel) -> None:
    """Takes the model's attention out of transformers' table, which would keep the cache alive."""
    ALL_ATTENTION_FUNCTIONS._global_mapping.pop(model.config._attn_implementation, None)
