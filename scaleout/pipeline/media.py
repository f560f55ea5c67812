"""What a server does with media: its settings and its model's files, for the render stage; and features that came as files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaleout import codec
from scaleout.config import ModeConfig
from scaleout.errors import ConfigError
from scaleout.render.modality import MediaLimits, MediaModel
from scaleout.render.multimodal import MediaSettings, Multimodal
from scaleout.tokenizer import ModelFiles, Tokenizer

MARKS = ("vision_config", "audio_config", "thinker_config", "img_processor", "vision_tower")
"""Keys of config.json that only models have which see or hear."""


def open_multimodal(config: ModeConfig, files: ModelFiles, tokenizer: Tokenizer) -> Multimodal | None:
    """The model's way with media; None for a text model, which costs nothing. Raises `ConfigError`."""
    if files.folder is None or not any(mark in files.config for mark in MARKS):
        return None
    model = MediaModel(
        config.model,
        files.folder,
        files.config,
        files.tokenizer_config,
        _read(files.folder / "processor_config.json"),
        _read(files.folder / "preprocessor_config.json"),
        _read(files.folder / "video_preprocessor_config.json"),
    )
    return Multimodal.open(model, media_settings(config), tokenizer)


def keep_torch_out() -> None:
    """For a process without an engine: have transformers do without torch even where it is installed.

    Its image processors import it if they can, which takes seconds and hundreds of megabytes and is of no use to them.
    """
    for name in ("torch", "torchvision"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def media_settings(config: ModeConfig) -> MediaSettings:
    media = config.media
    limits = MediaLimits(
        media.max_image_pixels, media.max_audio_seconds, media.max_video_frames, media.io_kwargs, media.processor_kwargs
    )
    return MediaSettings(
        limits,
        hasher=media.hasher,
        limit_per_prompt=media.limit_per_prompt,
        max_items=media.max_items,
        max_bytes=media.max_bytes,
        cache_bytes=int(media.cache_gb * (1 << 30)),
        trust_request_kwargs=media.trust_request_kwargs,
        interleave_strings=media.interleave_strings,
        raw_pixels=media.device_normalize,
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return codec.read_object(codec.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: {error}") from error
