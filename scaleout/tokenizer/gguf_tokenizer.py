"""Build the tokenizer that a GGUF file describes: the one that transformers makes of the same file, id for id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import tokenizers
from tokenizers import AddedToken, models

from scaleout.errors import ConfigError
from scaleout.tokenizer.build import Built, ends_template, set_parts
from scaleout.tokenizer.gguf import ArrayLength, read_gguf
from scaleout.tokenizer.recorded import rebuilt_class, recorded
from scaleout.tokenizer.token_bytes import byte_alphabet, spell_bytes

WANTED = tuple(f"tokenizer.ggml.{key}" for key in ("tokens", "merges", "scores", "token_type"))

NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

GEMMA = ("gemma", "gemma2", "gemma3")
"""Architectures whose SentencePiece vocabulary merges by its order, not by its scores, and spells runs of spaces as spaces."""

PREFIXED = ("phi3",)
"""Architectures that put the leading space there by a normalizer, before every other space."""

CONTROL, USER_DEFINED = 3, 4
"""Token types of the GGUF format that stay whole in a text."""


def build_from_gguf(path: Path) -> tuple[Built, bytes]:
    """Read the file's vocabulary and build its tokenizer; also the bytes that decided it.

    Raises ConfigError for a kind of vocabulary that is not known.
    """
    metadata = read_gguf(path, WANTED)
    about = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    tokens: list[str] = about.get("tokens") or []
    kind, architecture = about.get("model"), metadata.get("general.architecture")
    if kind == "gpt2":
        library, defaults = _byte_level(tokens, about)
    elif kind == "llama":
        library, defaults = _sentencepiece(tokens, about, architecture)
    else:
        raise ConfigError(
            f"The GGUF file {path.name} has a tokenizer of the kind {kind!r}; gpt2 and llama are known. "
            "Name a folder with its tokenizer.json (--tokenizer)."
        )
    library.add_tokens([AddedToken(token, special=True) for token in dict.fromkeys(defaults.values())])
    _add_marked_tokens(library, tokens, about.get("token_type") or (), byte_level=kind == "gpt2")
    named = _named_tokens(tokens, about)
    known = {token.content for token in library.get_added_tokens_decoder().values()}
    library.add_tokens(
        [AddedToken(token, special=True) for token in dict.fromkeys(named.values()) if token not in known]
    )
    _set_split(library, about.get("pre"))
    _set_ends(library, named, about, kind)
    deciding = {key: value for key, value in about.items() if not isinstance(value, ArrayLength) and "." not in key}
    return Built(library, named, f"gguf {architecture}"), orjson.dumps(deciding, option=orjson.OPT_SORT_KEYS)


def _byte_level(tokens: Sequence[str], about: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, Mapping[str, str]]:
    alphabet = byte_alphabet().keys()
    vocabulary = {
        token if alphabet >= set(token) else spell_bytes(token.encode()): token_id
        for token_id, token in enumerate(tokens)
    }
    return _assemble("GPT2Tokenizer", vocabulary, _merges(tokens, about, None))


def _sentencepiece(
    tokens: Sequence[str], about: Mapping[str, Any], architecture: str | None
) -> tuple[tokenizers.Tokenizer, Mapping[str, str]]:
    if architecture in GEMMA:
        tokens = ["▁" * len(token) if token and not token.strip(" ") else token for token in tokens]
        return _assemble("GemmaTokenizer", _numbered(tokens), _merges(tokens, about, range(0, -len(tokens), -1)))
    library, defaults = _assemble("LlamaTokenizer", _numbered(tokens), _merges(tokens, about, about.get("scores")))
    if architecture in PREFIXED:
        steps = [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]
        set_parts(library, {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None})
    return library, defaults


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _assemble(
    class_name: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]
) -> tuple[tokenizers.Tokenizer, Mapping[str, str]]:
    found = rebuilt_class(class_name, {})
    assert found is not None
    options = {option: value for option, value in found.pipeline["model"].items() if value is not None}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    set_parts(library, {part: state for part, state in found.pipeline.items() if part != "model"})
    return library, found.special_tokens


def _merges(tokens: Sequence[str], about: Mapping[str, Any], scores: Sequence[float] | None) -> list[tuple[str, str]]:
    """The file's merges, or every way to cut a token into two others, best score first."""
    if (listed := about.get("merges")) is not None:
        pairs = [merge.split(" ") for merge in listed]
        if any(len(pair) != 2 for pair in pairs):
            raise ConfigError("A merge of the GGUF file is no pair of tokens.")
        return [(left, right) for left, right in pairs]
    if scores is None or len(scores) != len(tokens):
        raise ConfigError("The GGUF file has neither merges nor a score for every token.")
    ids = _numbered(tokens)
    cuts: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in dict(zip(tokens, scores, strict=True)).items():
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        halves = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
        halves.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        cuts += [(score, len(left), len(right), (left, right)) for left, right in halves]
    cuts.sort(key=lambda cut: cut[:3], reverse=True)
    return [pair for *_, pair in cuts]


def _add_marked_tokens(
    library: tokenizers.Tokenizer, tokens: Sequence[str], types: Iterable[int], *, byte_level: bool
) -> None:
    marked = list(zip(tokens, types, strict=False))
    alphabet = byte_alphabet().keys()
    # In a byte-level vocabulary a control token in other letters is a mistake of the converter: it would get a new id.
    control = [token for token, kind in marked if kind == CONTROL and (not byte_level or alphabet >= set(token))]
    library.add_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    user = [token for token, kind in marked if kind == USER_DEFINED and library.token_to_id(token) is not None]
    library.add_tokens([AddedToken(token, normalized=False) for token in user])


def _named_tokens(tokens: Sequence[str], about: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for name, key in NAMED_IDS.items():
        token_id = about.get(key)
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise ConfigError(f"{key} of the GGUF file is no id of its vocabulary.")
        named[name] = tokens[token_id]
    return named


def _set_split(library: tokenizers.Tokenizer, name: str | None) -> None:
    """Give the words the borders with which the merges were learned, where the file names a known kind."""
    split = recorded()["gguf_splits"].get(name)
    if split is not None:
        regex = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        set_parts(library, {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [regex, bytes_alone]}})


def _set_ends(library: tokenizers.Tokenizer, named: Mapping[str, str], about: Mapping[str, Any], kind: str) -> None:
    """BOS and EOS as the file's flags say; a SentencePiece vocabulary without flags starts with BOS."""
    ends = []
    for flag, name, default in (("add_bos_token", "bos_token", kind == "llama"), ("add_eos_token", "eos_token", False)):
        token = named.get(name)
        token_id = None if token is None else library.token_to_id(token)
        ends.append(
            (token, token_id) if about.get(flag, default) and token is not None and token_id is not None else None
        )
    library.post_processor = ends_template(*ends)
