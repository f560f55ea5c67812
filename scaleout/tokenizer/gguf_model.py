"""A GGUF file's metadata in the words of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaleout.tokenizer.files import ModelFiles
from scaleout.tokenizer.gguf import ArrayLength
from scaleout.tokenizer.model_length import UNKNOWN_LENGTH

CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab_size",
}
"""Keys behind the architecture's name, and what config.json calls them."""

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Ids that end an answer: of a text, of a turn, of a message."""


def gguf_model_files(name: str, path: Path, metadata: Mapping[str, Any]) -> ModelFiles:
    """What the metadata says about the model. The tokenizer is read from the same file when it is wanted."""
    architecture = str(metadata.get("general.architecture", ""))
    config: dict[str, Any] = {"model_type": architecture}
    for key, name_in_config in CONFIG_KEYS.items():
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, int | float):
            config[name_in_config] = value
    tokens = metadata.get("tokenizer.ggml.tokens")
    config.setdefault("vocab_size", tokens.count if isinstance(tokens, ArrayLength) else 0)
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    eos = tuple(dict.fromkeys(token_id for token_id in ends if isinstance(token_id, int)))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    ids = {"bos_token_id": bos, "eos_token_id": list(eos)}
    return ModelFiles(
        name=name,
        gguf=path,
        config=config | ids,
        generation_config={key: value for key, value in ids.items() if value not in (None, [])},
        chat_template=_chat_template(metadata),
        max_model_len=config.get("max_position_embeddings", UNKNOWN_LENGTH),
        vocab_size=config["vocab_size"],
        eos_token_ids=eos,
        tokenizer_gguf=path if isinstance(tokens, ArrayLength) else None,
    )


def _chat_template(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """`tokenizer.chat_template`, with those that the file names `tokenizer.chat_template.NAME`."""
    prefix = "tokenizer.chat_template"
    default = metadata.get(prefix)
    found = {
        key.removeprefix(prefix + "."): value
        for key, value in metadata.items()
        if key.startswith(prefix + ".") and isinstance(value, str)
    }
    if isinstance(default, str):
        return {"default": default, **found} if found else default
    return found or None
