"""From a model's files to its tokenizer: the cheapest way that gives transformers' ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from scaleout.errors import ConfigError
from scaleout.tokenizer.build import Built, build_from_json
from scaleout.tokenizer.fast import require_fast, speed_up
from scaleout.tokenizer.files import ModelFiles
from scaleout.tokenizer.memory import give_back_freed_memory
from scaleout.tokenizer.recorded import PLAIN, choose_class, rebuilt_class
from scaleout.tokenizer.tokenizer import Tokenizer

Backend = Literal["auto", "fast", "hf"]
"""Which encoder: "hf" the tokenizers library, "fast" fastokens or no start, "auto" fastokens where it gives the same ids."""


def load_tokenizer(files: ModelFiles, backend: Backend = "hf", corpus: Iterable[str] = ()) -> Tokenizer:
    """The model's tokenizer. Its ids are those of transformers' AutoTokenizer for the same files.

    "auto" and "fast" check the fast encoder before this returns, on `corpus` too; to serve sooner, load with "hf" and call `speed_up`
    in a thread. Raises ConfigError when there is no tokenizer, or when reading it takes a package that is not installed.
    """
    built, raw = _build(files)
    tokenizer = Tokenizer(
        built.library, special_tokens=built.special_tokens, fingerprint=fingerprint(raw, built.recipe)
    )
    del built, raw
    give_back_freed_memory()
    if backend != "hf":
        (speed_up if backend == "auto" else require_fast)(tokenizer, corpus)
    return tokenizer


def _build(files: ModelFiles) -> tuple[Built, bytes]:
    """The library's tokenizer and the bytes it was made of."""
    if files.tokenizer_gguf is not None:
        from scaleout.tokenizer.gguf_tokenizer import build_from_gguf

        return build_from_gguf(files.tokenizer_gguf)
    folder = files.tokenizer_folder
    if folder is None:
        raise ConfigError(f"The model {files.name!r} has no tokenizer.")
    path = folder / "tokenizer.json"
    raw = path.read_bytes() if path.is_file() else b""
    class_name = choose_class(
        files.config.get("model_type"),
        files.tokenizer_config.get("tokenizer_class") or files.config.get("tokenizer_class"),
        model_name=files.name,
        byte_level=b'"ByteLevel"' in raw,
    )
    if raw and (class_name == PLAIN or rebuilt_class(class_name, files.tokenizer_config)):
        return build_from_json(raw, class_name, files.tokenizer_config, folder), raw

    from scaleout.tokenizer.convert import convert_folder

    return convert_folder(folder, files.name)


def fingerprint(*parts: bytes | str) -> str:
    """A short name for everything that decides ids and text."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
