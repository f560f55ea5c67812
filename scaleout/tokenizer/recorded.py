"""Facts about transformers' tokenizer classes, recorded from it, so that nothing here has to import it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from attrs import frozen

PLAIN = "TokenizersBackend"
"""The class that takes tokenizer.json as it stands; also what transformers falls back to."""


@cache
def recorded() -> Mapping[str, Any]:
    """The whole record; `tests/tokenizer/record_transformers.py` writes it and explains the parts."""
    value: dict[str, Any] = orjson.loads(Path(__file__).with_name("recorded.json").read_bytes())
    return value


def config_defaults() -> Mapping[str, tuple[int, int]]:
    """Per model type: default max_position_embeddings and vocab_size."""
    found: Mapping[str, tuple[int, int]] = recorded()["config_defaults"]
    return found


@frozen
class TokenizerClass:
    """A class that takes vocabulary and merges from the folder and brings everything else itself."""

    name: str
    special_tokens: Mapping[str, str]
    pipeline: Mapping[str, Any]
    keeps_post_processor: bool
    flags_extra_tokens: bool


def rebuilt_class(name: str, tokenizer_config: Mapping[str, Any]) -> TokenizerClass | None:
    """The recorded class of that name as the flags of `tokenizer_config` shape it; None when it is not recorded."""
    found = recorded()["classes"].get(name)
    if found is None:
        return None
    flags = [value if isinstance(value := tokenizer_config.get(flag), bool) else None for flag in recorded()["flags"]]
    pipeline = found["pipelines"][found["variants"][orjson.dumps(flags).decode()]]
    return TokenizerClass(
        name, found["special_tokens"], pipeline, found["keeps_post_processor"], found["flags_extra_tokens"]
    )


def is_known_class(name: str) -> bool:
    """Does transformers have a class of that name which differs from the plain one?"""
    return name in recorded()["classes"] or name in recorded()["other_classes"]


def choose_class(
    model_type: str | None, in_folder: str | None, *, model_name: str = "", byte_level: bool = False
) -> str:
    """The class that AutoTokenizer takes, without "Fast"; PLAIN when it takes tokenizer.json as it stands.

    `model_type` is config.json's, `in_folder` the `tokenizer_class` of the folder, `byte_level` says whether its tokenizer.json is.
    """
    facts = recorded()
    wanted = (in_folder or "").removesuffix("Fast")
    own = facts["model_types"].get(model_type)
    mistrusted = model_type in facts["wrong_class_in_folder"]
    if any(fnmatch(model_name.lower(), pattern) for pattern in facts["plain_by_name"]):
        return PLAIN
    if wanted == "LlamaTokenizer" and byte_level and not mistrusted:
        return PLAIN
    if wanted and own and own != wanted:
        if own == PLAIN:
            return PLAIN
        wanted = own if mistrusted else wanted
    elif not wanted:
        wanted = own or PLAIN
    return wanted if is_known_class(wanted) else PLAIN
