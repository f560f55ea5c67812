"""How long a model's context is and how many ids it knows, from config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from scaleout.tokenizer.recorded import config_defaults

UNKNOWN_LENGTH = 2048
"""The reference server's guess for a model that does not say."""

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Names under which families keep their length; the smallest counts."""

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal configs nest the part that reads tokens."""

SCALED_ALREADY = frozenset({"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Rotary scalings whose models state the stretched length; with others it is the stated length times the factor."""


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the text model: the whole of it, or what a multimodal config nests."""
    for key in TEXT_KEYS:
        if isinstance(nested := config.get(key), dict):
            return text_section(nested)
    return config


def read_max_model_len(config: Mapping[str, Any]) -> int:
    """Tokens of prompt and answer together. Sliding windows and the tokenizer's own limit do not count."""
    text = text_section(config)
    length = _stated_length(text) or _defaults(config, text)[0]
    if length is None:
        return UNKNOWN_LENGTH
    scalings = list(_rope_scalings(text))
    original = text.get("original_max_position_embeddings")
    if any(kind == "longrope" for kind, _ in scalings) and _is_size(original):
        return int(original)
    if "gemma3" in str(text.get("model_type", config.get("model_type"))):
        return int(length)  # its models state the stretched length too
    factors = [factor for kind, factor in scalings if kind not in SCALED_ALREADY and _is_size(factor)]
    return int(length * factors[-1]) if factors else int(length)


def _stated_length(text: Mapping[str, Any]) -> float | None:
    if _is_size(stated := text.get("model_max_length")):
        return stated
    return min((text[key] for key in LENGTH_KEYS if _is_size(text.get(key))), default=None)


def read_vocab_size(config: Mapping[str, Any]) -> int:
    """Ids that the model can be given, or 0 when the config does not say."""
    text = text_section(config)
    for found in (text.get("vocab_size"), config.get("vocab_size"), _defaults(config, text)[1]):
        if isinstance(found, int) and found > 0:
            return found
    return 0


def _defaults(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Length and vocabulary of the family, for files that leave out what equals the default."""
    for section in (text, config):
        if (found := config_defaults().get(str(section.get("model_type")))) is not None:
            return found[0], found[1]
    return None, None


def _rope_scalings(text: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Kind and factor of every rotary setting: old name or new, one for all layers or one per kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if isinstance(value, dict):
            for one in [one for one in value.values() if isinstance(one, dict)] or [value]:
                yield str(one.get("rope_type", one.get("type", "default"))), one.get("factor")


def _is_size(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
