"""Build from a folder with tokenizer.json the tokenizer that transformers' AutoTokenizer would: same ids, same added tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import tokenizers
from attrs import define, field, frozen
from tokenizers import AddedToken, processors

from scaleout.errors import ConfigError
from scaleout.tokenizer.recorded import PLAIN, TokenizerClass, choose_class, rebuilt_class

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that every transformers tokenizer has by name. Other keys ending in _token are a family's own names."""

AddedTokens = dict[int, AddedToken]


@frozen
class Built:
    """A tokenizer with its named special tokens, and in `recipe` everything but the file that decided them."""

    library: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    recipe: str


def folder_class(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], raw: bytes) -> str:
    """The transformers class for a folder; `raw` is its tokenizer.json, or empty."""
    in_folder = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    return choose_class(config.get("model_type"), in_folder, model_name=str(folder), byte_level=b'"ByteLevel"' in raw)


def build_from_json(raw: bytes, class_name: str, tokenizer_config: Mapping[str, Any], folder: Path) -> Built:
    """Build from the bytes of tokenizer.json. `class_name` is PLAIN or a recorded class; `folder` may hold older side files.

    Raises ConfigError when the file is no tokenizer.
    """
    found = None if class_name == PLAIN else rebuilt_class(class_name, tokenizer_config)
    library = parse_tokenizer(raw)
    names = _read_names(tokenizer_config, folder, library, found)
    if found is not None:
        # Such a class never sees the added tokens of tokenizer.json, only those that the side files list.
        if not library.get_added_tokens_decoder().keys() <= names.added.keys():
            library = parse_tokenizer(orjson.dumps(orjson.loads(raw) | {"added_tokens": []}))
        _set_pipeline(library, found)
    _add_tokens(library, names, overrule=found is not None)
    if found is not None and found.flags_extra_tokens:
        library.add_tokens([AddedToken(content, special=True) for content in names.all_special()])
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = bool(tokenizer_config.get("split_special_tokens"))
    return Built(library, names.spelled(), json.dumps([class_name, found and found.pipeline, _describe(library)]))


def parse_tokenizer(raw: bytes) -> tokenizers.Tokenizer:
    """The tokenizer in the bytes of tokenizer.json. Raises ConfigError."""
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"tokenizer.json of the model cannot be read: {error}") from None


# ------------------------------------------------------------------------------------------ tokens that have a name


@define
class _Names:
    """Special tokens by name, further ones without, and the added tokens that the side files list."""

    named: dict[str, str | AddedToken] = field(factory=dict)
    extra: list[str | AddedToken] = field(factory=list)
    added: AddedTokens = field(factory=dict)

    def spelled(self) -> dict[str, str]:
        return {name: _content(token) for name, token in self.named.items()}

    def all_special(self) -> list[str]:
        return list(dict.fromkeys(_content(token) for token in [*self.named.values(), *self.extra]))


def _read_names(
    tokenizer_config: Mapping[str, Any], folder: Path, library: tokenizers.Tokenizer, found: TokenizerClass | None
) -> _Names:
    options = dict(found.special_tokens if found else {}) | dict(tokenizer_config)
    if not options.get("extra_special_tokens"):
        options["extra_special_tokens"] = options.pop("additional_special_tokens", None)
    names = _Names()
    if isinstance(listed := options.get("added_tokens_decoder"), dict):
        names.added = {int(token_id): _token(token) for token_id, token in listed.items()}
    else:
        options |= _read_object(folder / "special_tokens_map.json")
        specials = {_content(_token(value)) for key, value in options.items() if key in NAMED and value}
        for content, token_id in _read_object(folder / "added_tokens.json").items():
            special = content in specials
            names.added[token_id] = AddedToken(content, normalized=not special, special=special)
        names.added |= library.get_added_tokens_decoder()
    by_content = {token.content: token for token in names.added.values()}
    extra = options.get("extra_special_tokens") or []
    if isinstance(extra, dict):
        options |= extra
        extra = []
    names.extra = [token if isinstance(token, str) else _token(token) for token in extra]
    for key in sorted(options, key=lambda key: NAMED.index(key) if key in NAMED else len(NAMED)):
        value = options[key]
        if not key.endswith("_token") or not isinstance(value, str | dict):
            continue
        token = value if isinstance(value, str) else _token(value)
        names.named[key] = by_content.get(_content(token), token) if key in NAMED else token
    return names


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path.name} of the model cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}


def _token(value: str | Mapping[str, Any]) -> AddedToken:
    """An added token as a config file writes it. Raises ConfigError for another shape."""
    if isinstance(value, str):
        return AddedToken(value)
    options = {key: value[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value}
    try:
        return AddedToken(value["content"], **options)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"An added token of the model is described wrongly: {error}") from None


def _content(token: str | AddedToken) -> str:
    return token if isinstance(token, str) else str(token.content)


def _flags(token: AddedToken) -> tuple[Any, ...]:
    return token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special


def _describe(library: tokenizers.Tokenizer) -> list[Any]:
    added = sorted(library.get_added_tokens_decoder().items())
    return [[token_id, *_flags(token)] for token_id, token in added] + [library.encode_special_tokens]


# ------------------------------------------------------------------------------------------ changing a tokenizer


def _add_tokens(library: tokenizers.Tokenizer, names: _Names, *, overrule: bool) -> None:
    """Add what the library does not have yet: listed tokens, then named and further special ones.

    `overrule`: named tokens become special even where the library has them already.
    """
    have = {token.content: token for token in library.get_added_tokens_decoder().values()}
    wanted = {token.content: token for _, token in sorted(names.added.items())}
    if not overrule:
        same = {
            content for content, token in have.items() if content in wanted and _flags(token) == _flags(wanted[content])
        }
        wanted = {content: token for content, token in wanted.items() if content not in same}
    for token in [*names.named.values(), *names.extra]:
        content = _content(token)
        if content not in wanted and (overrule or content not in have):
            wanted[content] = AddedToken(token, special=True) if isinstance(token, str) else token
    for content in names.spelled().values():
        if content in wanted:
            wanted[content].special = True
    missing = [
        token for token in wanted.values() if token.content not in have or _flags(token) != _flags(have[token.content])
    ]
    if missing:
        library.add_tokens(missing)


def _set_pipeline(library: tokenizers.Tokenizer, found: TokenizerClass) -> None:
    """Replace everything but vocabulary and merges by what the class brings."""
    set_parts(library, {part: state for part, state in found.pipeline.items() if part != "model"})
    model = library.model
    for option, value in found.pipeline["model"].items():
        if getattr(model, option) != value:
            setattr(model, option, value)
    if not found.keeps_post_processor or library.post_processor is None:
        library.post_processor = template(None, None)


def set_parts(library: tokenizers.Tokenizer, parts: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Give `library` the normalizer, pre-tokenizer and decoder that tokenizer.json would describe so; None takes one away."""
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    donor = tokenizers.Tokenizer.from_str(json.dumps(empty | dict(parts)))
    for part in parts:
        setattr(library, part, getattr(donor, part))


def template(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> Any:
    """A post-processor that puts `bos` before and `eos` after a text; each is a spelling and its id."""
    parts = [bos and bos[0], "$A", eos and eos[0]]
    single = [part for part in parts if part]
    pair = [part and part.replace("$A", "$B") + ":1" for part in parts]
    return processors.TemplateProcessing(
        single=single, pair=[*single, *(part for part in pair if part)], special_tokens=_unique([bos, eos])
    )


def _unique(tokens: Iterable[tuple[str, int] | None]) -> list[tuple[str, int]]:
    return list(dict.fromkeys(token for token in tokens if token))
