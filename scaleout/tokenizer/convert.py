"""Tokenizers that only transformers can read: converted once in a process of its own, then kept as an ordinary tokenizer.json."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scaleout.errors import ConfigError
from scaleout.tokenizer.build import Built, parse_tokenizer
from scaleout.tokenizer.hub import SMALL_FILES
from scaleout.tokenizer.json_file import read_json_object

TIMEOUT = 300
"""Seconds. The largest vocabularies take some ten; a converter that hangs must not hang the server's start."""

CONVERTER = "scaleout.tokenizer.convert_with_transformers"


def convert_folder(folder: Path, name: str) -> tuple[Built, bytes]:
    """The tokenizer of `folder` as transformers reads it, and the tokenizer.json it was kept as. `name` is for error texts.

    Raises ConfigError when the folder has no tokenizer, when transformers or a package it needs is missing, and when it fails.
    """
    files = _small_files(folder)
    if not any(path.name.startswith(("tokenizer.", "vocab.", "tekken")) or "tiktoken" in path.name for path in files):
        raise ConfigError(f"The model {name!r} has no tokenizer files.")
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"The tokenizer of {name!r} must be converted once, which needs the package transformers: pip install transformers"
        )
    kept = cache_folder() / _key(files)
    if not (kept / "tokenizer.json").exists():
        _convert(folder, name, kept)
    raw = (kept / "tokenizer.json").read_bytes()
    about = read_json_object(kept / "about.json")
    library = parse_tokenizer(raw)
    library.encode_special_tokens = about["split_special_tokens"]
    return Built(library, about["special_tokens"], repr(about)), raw


def cache_folder() -> Path:
    """Where converted tokenizers are kept, one folder per content: `$XDG_CACHE_HOME/scaleout/tokenizers`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "scaleout" / "tokenizers"


def _small_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in SMALL_FILES for path in folder.glob(pattern) if path.is_file()})


def _key(files: list[Path]) -> str:
    """A name for the content of `files` and the release that converts them."""
    digest = hashlib.blake2b(importlib.metadata.version("transformers").encode(), digest_size=16)
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def _convert(folder: Path, name: str, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        out = Path(work) / "out"
        out.mkdir()
        command = [sys.executable, "-m", CONVERTER, str(folder.resolve()), str(out)]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"transformers took more than {TIMEOUT} s to read the tokenizer of {name!r}.") from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"transformers cannot read the tokenizer of {name!r}: {reason}")
        try:
            out.rename(kept)  # whole or not at all: another server may be reading
        except OSError:
            if not kept.is_dir():
                raise
