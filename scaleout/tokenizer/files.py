"""What a model's folder, hub repository or GGUF file says about it, without touching a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from scaleout.errors import ConfigError
from scaleout.tokenizer.chat_templates import read_chat_template
from scaleout.tokenizer.json_file import read_json_object
from scaleout.tokenizer.model_length import read_max_model_len, read_vocab_size, text_section

ChatTemplate = str | dict[str, str] | None
"""One template, or several by name ("default" is the ordinary one), or none."""


@frozen
class ModelFiles:
    """A model as far as a server without its weights needs to know it. Lengths and sizes are in tokens.

    `name` is what the user asked for. `folder` is its Hugging Face folder (also for a hub id: where the fetched files lie), `gguf` its
    GGUF file; `tokenizer_folder` is where the tokenizer lies, `tokenizer_gguf` the file that holds it. `vocab_size` is the model's:
    ids from 0 to it.
    """

    name: str
    folder: Path | None = None
    gguf: Path | None = None
    config: Mapping[str, Any] = field(factory=dict)
    generation_config: Mapping[str, Any] = field(factory=dict)
    tokenizer_config: Mapping[str, Any] = field(factory=dict)
    chat_template: ChatTemplate = None
    max_model_len: int = 2048
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    revision: str | None = None
    tokenizer_folder: Path | None = None
    tokenizer_gguf: Path | None = None


def load_model_files(
    model: str, *, revision: str | None = None, tokenizer: str | None = None, hf_token: str | None = None
) -> ModelFiles:
    """Read what is known about `model`: a Hugging Face folder, a GGUF file, a folder with one GGUF file, or a hub id.

    `tokenizer` names another place of the same kinds for tokenizer and chat template. From the hub only tokenizer, template and
    config files are fetched, into its own cache; `revision` and `hf_token` are for the hub. Raises ConfigError.
    """
    files = _read(model, revision, hf_token)
    if tokenizer is None or tokenizer == model:
        return files
    other = _read(tokenizer, None, hf_token)
    return ModelFiles(
        name=files.name,
        folder=files.folder,
        gguf=files.gguf,
        config=files.config,
        generation_config=files.generation_config,
        tokenizer_config=other.tokenizer_config,
        chat_template=other.chat_template,
        max_model_len=files.max_model_len,
        vocab_size=files.vocab_size or other.vocab_size,
        eos_token_ids=files.eos_token_ids,
        revision=files.revision,
        tokenizer_folder=other.tokenizer_folder,
        tokenizer_gguf=other.tokenizer_gguf,
    )


def _read(model: str, revision: str | None, hf_token: str | None) -> ModelFiles:
    path = Path(model).expanduser()
    if path.is_file():
        return _read_gguf(model, path)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1 and not (path / "config.json").exists():
            return _read_gguf(model, files[0])
        return read_folder(model, path)

    from scaleout.tokenizer.hub import fetch_model_files, is_hub_id

    if not is_hub_id(model):
        raise ConfigError(f"The model {model!r} is no folder, no GGUF file and no hub id (organisation/name).")
    return read_folder(model, fetch_model_files(model, revision, hf_token), revision)


def _read_gguf(model: str, path: Path) -> ModelFiles:
    from scaleout.tokenizer.gguf import read_gguf
    from scaleout.tokenizer.gguf_model import gguf_model_files

    return gguf_model_files(model, path, read_gguf(path))


def read_folder(model: str, folder: Path, revision: str | None = None) -> ModelFiles:
    """Read a Hugging Face folder. Raises ConfigError when it holds neither config.json nor a tokenizer."""
    if not any((folder / name).exists() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")):
        raise ConfigError(
            f"The folder of {model!r} has no config.json, no tokenizer.json and not exactly one GGUF file."
        )
    config = read_json_object(folder / "config.json")
    generation_config = read_json_object(folder / "generation_config.json")
    tokenizer_config = read_json_object(folder / "tokenizer_config.json")
    return ModelFiles(
        name=model,
        folder=folder,
        config=config,
        generation_config=generation_config,
        tokenizer_config=tokenizer_config,
        chat_template=read_chat_template(folder, tokenizer_config),
        max_model_len=read_max_model_len(config),
        vocab_size=read_vocab_size(config),
        eos_token_ids=_first_ids(
            generation_config.get("eos_token_id"), text_section(config).get("eos_token_id"), config.get("eos_token_id")
        ),
        revision=revision,
        tokenizer_folder=folder,
    )


def _first_ids(*found: Any) -> tuple[int, ...]:
    """The first of `found` that is an id or a list of ids, without repeats."""
    for value in found:
        ids: Iterable[Any] = value if isinstance(value, list) else [value]
        if good := tuple(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int))):
            return good
    return ()
