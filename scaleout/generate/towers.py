"""What the towers of models make of one item, where the model's own class has no method that does it as an item travels."""

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


def see_crops(
    model: Any, image_pixel_values: Tensor, image_sizes: Tensor, image_attention_mask: Tensor
) -> BaseModelOutputWithPooling:
    """One picture of Phi-4-multimodal: crops [1, 1 + crops, 3, side, side], its height and width [1, 2], patches that show some of it."""
    tower = model.embed_tokens_extend.image_embed
    mask = image_attention_mask.bool()
    down, across = (image_sizes[0] // tower.crop_size).tolist()
    side = round(tower.num_img_tokens**0.5)
    seen = mask[0, 1 : 1 + down * across, ::2, ::2].reshape(down, across, side, side)
    tall, wide = int(seen[:, 0, :, 0].sum()), int(seen[0, :, 0].sum())
    slots = tall * (wide + 1) + 1 + side * (side + 1)
    # The tower writes into embeddings that it is given; here they are nothing but slots.
    ids = torch.full((1, slots), tower.config.vision_config.image_token_id, device=image_pixel_values.device)
    blank = torch.zeros(1, slots, tower.config.hidden_size, dtype=image_pixel_values.dtype, device=ids.device)
    return BaseModelOutputWithPooling(pooler_output=tower(ids, blank, image_pixel_values, image_sizes, mask)[0])


def hear_cut(model: Any, input_audio_features: Tensor, audio_feature_lengths: Tensor) -> BaseModelOutputWithPooling:
    """Spectrogram [bands, frames] of nothing but sound → its rows, as Qwen2.5-Omni does."""
    whole = torch.ones(1, input_audio_features.shape[1], dtype=torch.int64, device=input_audio_features.device)
    heard: BaseModelOutputWithPooling = model.get_audio_features(input_audio_features[None], whole, return_dict=True)
    return heard
