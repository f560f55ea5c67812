"""What the audio towers of models make of one sound, where the model's own class has no method that does it as a sound travels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling


def hear_padded(model: Any, input_features: Tensor, feature_attention_mask: Tensor) -> BaseModelOutputWithPooling:
    """Spectrogram [1, bands, frames] with silence behind it, its mask [1, frames] → the rows of what is sound, as Qwen2-Audio does."""
    sound, slots = model.audio_tower._get_feat_extract_output_lengths(feature_attention_mask.sum(-1))
    frames = (input_features.shape[-1] - 2) // 2 + 1  # behind the tower's first layers, which halve them
    seen = torch.arange(frames, device=input_features.device) < sound
    rows = model.audio_tower(input_features, attention_mask=seen.expand(1, 1, frames, frames)).last_hidden_state
    return BaseModelOutputWithPooling(pooler_output=model.multi_modal_projector(rows)[0, : int(slots)])


def hear_cut(model: Any, input_audio_features: Tensor, audio_feature_lengths: Tensor) -> BaseModelOutputWithPooling:
    """Spectrogram [bands, frames] of nothing but sound → its rows, as Qwen2.5-Omni does."""
    whole = torch.ones(1, input_audio_features.shape[1], dtype=torch.int64, device=input_audio_features.device)
    heard: BaseModelOutputWithPooling = model.get_audio_features(input_audio_features[None], whole, return_dict=True)
    return heard
