"""Small folders of vision and audio models: real tokenizers, the family's processor files, configs of a few random layers' size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from tokenizers import AddedToken, Tokenizer

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}IMAGE{% elif p['type'] == 'audio' %}AUDIO"
    "{% elif p['type'] == 'video' %}VIDEO{% elif 'text' in p %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml(image: str = "", audio: str = "", video: str = "") -> str:
    return CHATML.replace("IMAGE", image).replace("AUDIO", audio).replace("VIDEO", video)


PIECES = 8192
"""Of a vocabulary, where it does not matter which words are one token."""


@frozen
class Family:
    """`base`: a model of `tiny_model` whose tokenizer is used; `tokens` are added to it as special ones.

    `processor`: the class in transformers. `named`: names of tokens in the tokenizer's configuration.
    """

    base: str
    processor: str
    template: str
    config: Mapping[str, Any]
    image: Mapping[str, Any] | None = None
    arguments: Mapping[str, Any] = field(factory=dict)
    tokens: Sequence[str] = ()
    named: Mapping[str, str] = field(factory=dict)
    audio: Mapping[str, Any] | None = None
    video: Mapping[str, Any] | None = None


def _text(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        **more,
    }


_QWEN_VISION = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 32,
    "num_heads": 2,
    "in_channels": 3,
    "mlp_ratio": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN_ROPE = {"rope_type": "default", "type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_QWEN_IMAGE = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 28 * 28 * 64,
    **CLIP,
}
_QWEN_TEMPLATE = chatml(
    "<|vision_start|><|image_pad|><|vision_end|>", video="<|vision_start|><|video_pad|><|vision_end|>"
)
_SIGLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_IDEFICS_TOKENS = [
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
_IDEFICS_TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}{{ '<start_of_image>' }}{% elif p['type'] == 'text' %}{{ p['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_LLAVA_TEMPLATE = (
    "{% for m in messages %}{{ m['role'].upper() + ': ' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] + ' ' }}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
_PIXTRAL_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[INST]{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}[IMG]{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "[/INST]{% endfor %}"
)
_PIXTRAL_IMAGE = {
    "image_processor_type": "PixtralImageProcessor",
    "size": {"longest_edge": 128},
    "patch_size": {"height": 16, "width": 16},
    **CLIP,
}
_PIXTRAL_VISION = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 128,
    "patch_size": 16,
}
_ANYRES = [[56, 56], [56, 112], [112, 56], [112, 112], [56, 168], [168, 56]]

_AUDIO = {
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "max_source_positions": 200,
}
_WHISPER = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 16,
    "chunk_length": 4,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
}
_OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_OMNI_IDS = {
    "image_token_id": "<|IMAGE|>",
    "audio_token_id": "<|AUDIO|>",
    "video_token_id": "<|VIDEO|>",
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
}

_GLM4V = Family(
    "qwen3",
    "Glm4vProcessor",
    chatml("<|begin_of_image|><|image|><|end_of_image|>", video="<|begin_of_video|><|video|><|end_of_video|>"),
    {
        "model_type": "glm4v",
        "text_config": _text(model_type="glm4v_text"),
        "vision_config": {"model_type": "glm4v_vision"},
    },
    {
        "image_processor_type": "Glm4vImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 128},
        **CLIP,
    },
    tokens=(
        *("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
        *("<|begin_of_video|>", "<|video|>", "<|end_of_video|>"),
    ),
    video={"size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 80}},
)

FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": Family(
        "qwen3",
        "Qwen2VLProcessor",
        _QWEN_TEMPLATE,
        {
            "model_type": "qwen2_vl",
            "text_config": _text(model_type="qwen2_vl_text", rope_scaling=_QWEN_ROPE, rope_parameters=_QWEN_ROPE),
            "vision_config": {"model_type": "qwen2_vl_vision", **_QWEN_VISION},
            **_QWEN_IDS,
        },
        _QWEN_IMAGE,
    ),
    "qwen2_5_vl": Family(
        "qwen3",
        "Qwen2_5_VLProcessor",
        _QWEN_TEMPLATE,
        {
            "model_type": "qwen2_5_vl",
            "text_config": _text(model_type="qwen2_5_vl_text", rope_scaling=_QWEN_ROPE, rope_parameters=_QWEN_ROPE),
            "vision_config": {
                **_QWEN_VISION,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [1],
                "model_type": "qwen2_5_vl_vision",
            },
            **_QWEN_IDS,
        },
        _QWEN_IMAGE,
        video={"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 12}},
    ),
    "qwen3_vl": Family(
        "qwen3",
        "Qwen3VLProcessor",
        _QWEN_TEMPLATE,
        {
            "model_type": "qwen3_vl",
            "text_config": _text(model_type="qwen3_vl_text", rope_scaling=_QWEN_ROPE, rope_parameters=_QWEN_ROPE),
            "vision_config": {
                **_QWEN_VISION,
                "patch_size": 16,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "model_type": "qwen3_vl_vision",
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0],
            },
            **_QWEN_IDS,
        },
        {**_QWEN_IMAGE, "patch_size": 16, "max_pixels": 32 * 32 * 64, **HALF},
        video={"size": {"shortest_edge": 4096, "longest_edge": 32 * 32 * 80}, **HALF},
    ),
    "glm4v": _GLM4V,
    "glm46v": evolve(
        _GLM4V,
        processor="Glm46VProcessor",
        config={**_GLM4V.config, "model_type": "glm46v"},
        image={**(_GLM4V.image or {}), "image_processor_type": "Glm46VImageProcessor"},
    ),
    "gemma3": Family(
        "gemma3",
        "Gemma3Processor",
        _GEMMA_TEMPLATE,
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 16,
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
            "text_config": _text(model_type="gemma3_text", sliding_window=64),
            "vision_config": {"model_type": "siglip_vision_model", **_SIGLIP, "image_size": 112, "patch_size": 14},
        },
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 112, "width": 112}, **HALF},
        {"image_seq_length": 16},
    ),
    "llava": Family(
        "llama2",
        "LlavaProcessor",
        _LLAVA_TEMPLATE,
        {
            "model_type": "llava",
            "image_token_index": 32000,
            "vision_feature_select_strategy": "default",
            "vision_feature_layer": -2,
            "text_config": _text(model_type="llama"),
            "vision_config": {"model_type": "clip_vision_model", **_SIGLIP, "image_size": 56, "patch_size": 14},
        },
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
            "do_center_crop": True,
            **CLIP,
        },
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        tokens=("<image>",),
    ),
    "llava_onevision": Family(
        "qwen3",
        "LlavaOnevisionProcessor",
        chatml("<image>", video="<video>"),
        {
            "model_type": "llava_onevision",
            "image_grid_pinpoints": _ANYRES,
            "text_config": _text(model_type="qwen2"),
            "vision_config": {"model_type": "siglip_vision_model", **_SIGLIP, "image_size": 56, "patch_size": 14},
        },
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 56, "width": 56},
            "image_grid_pinpoints": _ANYRES,
            **HALF,
        },
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"},
        tokens=("<image>", "<video>"),
    ),
    "idefics3": Family(
        "llama3_1",
        "Idefics3Processor",
        _IDEFICS_TEMPLATE,
        {
            "model_type": "idefics3",
            "scale_factor": 2,
            "text_config": _text(model_type="llama"),
            "vision_config": {"model_type": "idefics3_vision", **_SIGLIP, "image_size": 56, "patch_size": 14},
        },
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 168},
            "max_image_size": {"longest_edge": 56},
            "do_image_splitting": True,
            **HALF,
        },
        {"image_seq_len": 4},
        tokens=("<|im_start|>", *_IDEFICS_TOKENS),
    ),
    "smolvlm": Family(
        "qwen3",
        "SmolVLMProcessor",
        _IDEFICS_TEMPLATE,
        {
            "model_type": "smolvlm",
            "scale_factor": 2,
            "text_config": _text(model_type="llama"),
            "vision_config": {"model_type": "smolvlm_vision", **_SIGLIP, "image_size": 56, "patch_size": 14},
        },
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 168},
            "max_image_size": {"longest_edge": 56},
            "do_image_splitting": True,
            **HALF,
        },
        {"image_seq_len": 4},
        tokens=_IDEFICS_TOKENS,
    ),
    "internvl": Family(
        "qwen3",
        "InternVLProcessor",
        chatml("<IMG_CONTEXT>\n", video="<video>\n"),
        {
            "model_type": "internvl",
            "image_seq_length": 4,
            "text_config": _text(model_type="qwen2"),
            "vision_config": {
                "model_type": "internvl_vision",
                **_SIGLIP,
                "image_size": [56, 56],
                "patch_size": [14, 14],
            },
        },
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 56, "width": 56},
            "crop_to_patches": True,
            "max_patches": 6,
            "min_patches": 1,
            **CLIP,
        },
        {"image_seq_length": 4},
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "qwen2_audio": Family(
        "qwen3",
        "Qwen2AudioProcessor",
        chatml(audio="Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n"),
        {
            "model_type": "qwen2_audio",
            "text_config": _text(model_type="qwen2"),
            "audio_config": {
                "model_type": "qwen2_audio_encoder",
                **_AUDIO,
            },
        },
        tokens=("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        audio=_WHISPER,
    ),
    "phi4_multimodal": Family(
        "qwen3",
        "Phi4MultimodalProcessor",
        chatml("<|image|>", "<|audio|>"),
        {
            "model_type": "phi4_multimodal",
            **_text(),
            "pad_token_id": 5,
            "bos_token_id": 5,
            "eos_token_id": 5,
            "vision_config": {"model_type": "phi4_multimodal_vision", **_SIGLIP},
            "audio_config": {
                "model_type": "phi4_multimodal_audio",
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 32,
                "depthwise_separable_out_channel": 32,
                "nemo_conv_channels": 32,
            },
        },
        {"image_processor_type": "Phi4MultimodalImageProcessor", "dynamic_hd": 4},
        tokens=("<|image|>", "<|audio|>"),
        named={"image_token": "<|image|>", "audio_token": "<|audio|>"},
    ),
    "qwen2_5_omni": Family(
        "qwen3",
        "Qwen2_5OmniProcessor",
        chatml(
            "<|vision_bos|><|IMAGE|><|vision_eos|>",
            "<|audio_bos|><|AUDIO|><|audio_eos|>",
            "<|vision_bos|><|VIDEO|><|vision_eos|>",
        ),
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": _text(model_type="qwen2_5_omni_text", rope_parameters=_QWEN_ROPE),
                "vision_config": {
                    **_QWEN_VISION,
                    "intermediate_size": 64,
                    "out_hidden_size": 32,
                    "fullatt_block_indexes": [1],
                    "model_type": "qwen2_5_omni_vision_encoder",
                },
                "audio_config": {
                    **_AUDIO,
                    "model_type": "qwen2_5_omni_audio_encoder",
                    "n_window": 20,
                    "output_dim": 32,
                },
            },
        },
        _QWEN_IMAGE,
        tokens=tuple(_OMNI_TOKENS.values()),
        named=_OMNI_TOKENS,
        audio=_WHISPER,
    ),
    "pixtral": Family(
        "llama3_1",
        "PixtralProcessor",
        _PIXTRAL_TEMPLATE,
        {"model_type": "llava", "text_config": _text(model_type="mistral"), "vision_config": _PIXTRAL_VISION},
        _PIXTRAL_IMAGE,
        {"patch_size": 16, "spatial_merge_size": 1},
        tokens=("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    ),
    "mistral3": Family(
        "llama3_1",
        "PixtralProcessor",
        _PIXTRAL_TEMPLATE,
        {
            "model_type": "mistral3",
            "spatial_merge_size": 2,
            "text_config": _text(model_type="mistral"),
            "vision_config": _PIXTRAL_VISION,
        },
        _PIXTRAL_IMAGE,
        {"patch_size": 16, "spatial_merge_size": 2},
        tokens=("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    ),
}


def build(family: Family, base: Path, out: Path, pieces: int | None = None) -> Path:
    """Write the folder of a model. `base` holds the tokenizer it starts from, of which the first `pieces` are kept."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(base, pieces if family.base in CUT else None)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.tokens])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = json.loads((base / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    settings |= {**family.named, "chat_template": family.template, "processor_class": family.processor}
    if family.named:
        settings["extra_special_tokens"] = dict(family.named)
    _write(out / "tokenizer_config.json", settings)
    _write(out / "config.json", _config(family, base, tokenizer, pieces))
    _write(out / "processor_config.json", {"processor_class": family.processor, **family.arguments})
    media = {**(family.image or {}), **(family.audio or {})}
    _write(out / "preprocessor_config.json", {**media, "processor_class": family.processor})
    if family.video is not None:
        _write(out / "video_preprocessor_config.json", family.video)
    return out


CUT = ("qwen3", "llama3_1", "gemma3")
"""Bases whose vocabulary begins with the bytes, and goes on with the commonest pieces."""


def _tokenizer(base: Path, pieces: int | None) -> Tokenizer:
    """A whole one takes seconds to read, here, in transformers and in the server."""
    if pieces is None:
        return Tokenizer.from_file(str(base / "tokenizer.json"))
    read = json.loads((base / "tokenizer.json").read_text())
    model = read["model"]
    kept = model["vocab"] = {piece: number for piece, number in model["vocab"].items() if number < pieces}
    parts = [(merge.split(" ") if isinstance(merge, str) else merge, merge) for merge in model["merges"]]
    model["merges"] = [merge for (a, b), merge in parts if a in kept and b in kept and a + b in kept]
    added = [token for token in read["added_tokens"] if token["content"] in kept or "unused" not in token["content"]]
    numbers = itertools.count(pieces)
    for token in added:
        token["id"] = kept[token["content"]] if token["content"] in kept else next(numbers)
    read["added_tokens"], moved = added, {token["content"]: token["id"] for token in added}
    after = read["post_processor"]
    for processor in after.get("processors", [after]):
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [moved[content] for content in token["tokens"]]
    return Tokenizer.from_str(json.dumps(read))


def _config(family: Family, base: Path, tokenizer: Tokenizer, pieces: int | None) -> dict[str, Any]:
    """The model's, with ids for the names of tokens in it, and as many of them as there are."""
    whole = json.loads((base / "config.json").read_text())["vocab_size"]
    vocab_size = max(tokenizer.get_vocab_size(), 0 if pieces and family.base in CUT else whole)
    config = {
        name: tokenizer.token_to_id(value)
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, str)
        else value
        for name, value in family.config.items()
    }
    if "thinker_config" in config:
        ids = {name: tokenizer.token_to_id(token) for name, token in _OMNI_IDS.items()}
        config["thinker_config"] = _with_vocabulary({**config["thinker_config"], **ids}, vocab_size)
        return config
    if "text_config" not in config:
        ids = {"image_token_id": tokenizer.token_to_id("<|image|>")}
        return {**config, "vocab_size": vocab_size, "vision_config": {**config["vision_config"], **ids}}
    config = _with_vocabulary(config, vocab_size)
    if "image_token_id" not in config and "image_token_index" not in config:
        slot = next(t for t in ("<|AUDIO|>", "<IMG_CONTEXT>", "[IMG]", "<image>", "<|image|>") if t in family.tokens)
        kind = "audio" if family.audio is not None else "image"
        old = config["model_type"] in ("llava", "llava_onevision", "mistral3", "qwen2_audio")
        config[f"{kind}_token_{'index' if old else 'id'}"] = tokenizer.token_to_id(slot)
    return config


def _with_vocabulary(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    return {**config, "text_config": {**config["text_config"], "vocab_size": size}}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))
