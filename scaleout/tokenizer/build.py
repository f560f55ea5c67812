"""Build from tokenizer.json the tokenizer that transformers' AutoTokenizer would: same ids, same added tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import tokenizers
from attrs import frozen
from tokenizers import AddedToken, processors

from scaleout.errors import ConfigError
from scaleout.tokenizer.recorded import PLAIN, TokenizerClass, rebuilt_class
from scaleout.tokenizer.special_tokens import SpecialTokens, flags, read_special_tokens, spelling


@frozen
class Built:
    """A library's tokenizer with its named special tokens. `recipe`: everything beside the file's bytes that decided it."""

    library: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    recipe: str


def build_from_json(raw: bytes, class_name: str, tokenizer_config: Mapping[str, Any], folder: Path) -> Built:
    """Build from the bytes of tokenizer.json as the class of that name would: PLAIN, or one that `rebuilt_class` knows.

    `folder` may hold older side files. Raises ConfigError when one of the files is damaged.
    """
    found = None if class_name == PLAIN else rebuilt_class(class_name, tokenizer_config)
    library = parse_tokenizer(raw)
    defaults = found.special_tokens if found else {}
    tokens = read_special_tokens(folder, tokenizer_config, defaults, library.get_added_tokens_decoder())
    if found is not None:
        # Such a class never sees the added tokens of tokenizer.json, only those that the side files list.
        if not library.get_added_tokens_decoder().keys() <= tokens.added.keys():
            library = parse_tokenizer(orjson.dumps(orjson.loads(raw) | {"added_tokens": []}))
        _set_pipeline(library, found)
    _add_tokens(library, tokens, overrule=found is not None)
    if found is not None and found.flags_extra_tokens:
        library.add_tokens([AddedToken(content, special=True) for content in tokens.all_special()])
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = bool(tokenizer_config.get("split_special_tokens"))
    return Built(library, tokens.spelled(), json.dumps([class_name, found and found.pipeline, _describe(library)]))


def parse_tokenizer(raw: bytes) -> tokenizers.Tokenizer:
    """The tokenizer in the bytes of tokenizer.json. Raises ConfigError."""
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"tokenizer.json of the model cannot be read: {error}") from None


def set_parts(library: tokenizers.Tokenizer, parts: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Give `library` the normalizer, pre-tokenizer and decoder that tokenizer.json would describe so; None takes one away."""
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    donor = tokenizers.Tokenizer.from_str(json.dumps(empty | dict(parts)))
    for part in parts:
        setattr(library, part, getattr(donor, part))


def ends_template(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> Any:
    """A post-processor that puts `bos` before and `eos` after a text; each is a spelling and its id."""
    first, last = ([token[0]] if token else [] for token in (bos, eos))
    single = [*first, "$A", *last]
    pair = [*single, *(content + ":1" for content in first), "$B:1", *(content + ":1" for content in last)]
    tokens = list(dict.fromkeys(token for token in (bos, eos) if token))
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


def _set_pipeline(library: tokenizers.Tokenizer, found: TokenizerClass) -> None:
    """Replace everything but vocabulary and merges by what the class brings."""
    set_parts(library, {part: state for part, state in found.pipeline.items() if part != "model"})
    model = library.model
    for option, value in found.pipeline["model"].items():
        if getattr(model, option) != value:
            setattr(model, option, value)
    if not found.keeps_post_processor or library.post_processor is None:
        library.post_processor = ends_template(None, None)


def _add_tokens(library: tokenizers.Tokenizer, tokens: SpecialTokens, *, overrule: bool) -> None:
    """Add what the library does not have yet: listed tokens, then named and further special ones.

    `overrule`: named tokens become special even where the library has them already.
    """
    have = {token.content: flags(token) for token in library.get_added_tokens_decoder().values()}
    wanted = {token.content: token for _, token in sorted(tokens.added.items())}
    if not overrule:
        wanted = {content: token for content, token in wanted.items() if have.get(content) != flags(token)}
    for token in [*tokens.named.values(), *tokens.extra]:
        content = spelling(token)
        if content not in wanted and (overrule or content not in have):
            wanted[content] = AddedToken(token, special=True) if isinstance(token, str) else token
    for content in tokens.spelled().values():
        if content in wanted:
            wanted[content].special = True
    missing = [token for content, token in wanted.items() if have.get(content) != flags(token)]
    if missing:
        library.add_tokens(missing)


def _describe(library: tokenizers.Tokenizer) -> list[Any]:
    added = sorted(library.get_added_tokens_decoder().items())
    return [[token_id, *flags(token)] for token_id, token in added] + [library.encode_special_tokens]
