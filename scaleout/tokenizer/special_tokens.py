"""Special and added tokens as a folder's side files list them: tokenizer_config.json, and older files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field
from tokenizers import AddedToken

from scaleout.errors import ConfigError
from scaleout.tokenizer.json_file import read_json_object

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that every transformers tokenizer has by name. Other keys ending in _token are a family's own names."""

AddedTokens = dict[int, AddedToken]


@define
class SpecialTokens:
    """Special tokens by name, further ones without a name, and the added tokens by id, special or not."""

    named: dict[str, str | AddedToken] = field(factory=dict)
    extra: list[str | AddedToken] = field(factory=list)
    added: AddedTokens = field(factory=dict)

    def spelled(self) -> dict[str, str]:
        """The named ones, as text."""
        return {name: spelling(token) for name, token in self.named.items()}

    def all_special(self) -> list[str]:
        """All special ones as text, each once."""
        return list(dict.fromkeys(spelling(token) for token in [*self.named.values(), *self.extra]))


def read_special_tokens(
    folder: Path, tokenizer_config: Mapping[str, Any], defaults: Mapping[str, str], in_library: AddedTokens
) -> SpecialTokens:
    """Read the side files as transformers does.

    `defaults`: named tokens of the tokenizer's class. `in_library`: the added tokens of tokenizer.json, which count only where
    tokenizer_config.json does not list its own. Raises ConfigError for entries of another shape.
    """
    options = dict(defaults) | dict(tokenizer_config)
    if not options.get("extra_special_tokens"):
        options["extra_special_tokens"] = options.pop("additional_special_tokens", None)
    found = SpecialTokens()
    if isinstance(listed := options.get("added_tokens_decoder"), dict):
        found.added = {_id(token_id): _token(token) for token_id, token in listed.items()}
    else:
        options |= read_json_object(folder / "special_tokens_map.json")
        special = {spelling(_token(value)) for key, value in options.items() if key in NAMED and value}
        for content, token_id in read_json_object(folder / "added_tokens.json").items():
            is_special = content in special
            found.added[_id(token_id)] = AddedToken(content, normalized=not is_special, special=is_special)
        found.added |= in_library
    extra = options.get("extra_special_tokens") or []
    if isinstance(extra, dict):
        options |= extra
    elif isinstance(extra, list):
        found.extra = [token if isinstance(token, str) else _token(token) for token in extra]
    by_spelling = {token.content: token for token in found.added.values()}
    for key in sorted(options, key=lambda key: NAMED.index(key) if key in NAMED else len(NAMED)):
        value = options[key]
        if key.endswith("_token") and isinstance(value, str | dict):
            token = value if isinstance(value, str) else _token(value)
            found.named[key] = by_spelling.get(spelling(token), token) if key in NAMED else token
    return found


def spelling(token: str | AddedToken) -> str:
    """The token as text."""
    return token if isinstance(token, str) else str(token.content)


def flags(token: AddedToken) -> tuple[Any, ...]:
    """Everything that makes two added tokens differ; the library itself compares their text alone."""
    return token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special


def _id(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"An added token of the model has the id {value!r}.") from None


def _token(value: Any) -> AddedToken:
    """An added token as a config file writes it: its text, or an object with its flags."""
    if isinstance(value, str):
        return AddedToken(value)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise ConfigError(f"An added token of the model must be a text or an object with content, not {value!r}.")
    options = {
        key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value
    }
    return AddedToken(value["content"], **options)
