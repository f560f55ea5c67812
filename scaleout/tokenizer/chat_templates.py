"""Where a model's folder keeps its chat template: four places, in the order in which transformers looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaleout.errors import ConfigError
from scaleout.tokenizer.json_file import read_json_object


def read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The template, or several by name, or None.

    chat_template.jinja with additional_chat_templates/NAME.jinja hides `chat_template` of tokenizer_config.json, which hides the old
    chat_template.json. Raises ConfigError for a value of another shape.
    """
    files = {path.stem: _read(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        files = {"default": _read(default), **files}
    if files:
        return files["default"] if list(files) == ["default"] else files
    found = named_templates(tokenizer_config.get("chat_template"))
    if found is None:
        found = named_templates(read_json_object(folder / "chat_template.json").get("chat_template"))
    return found


def named_templates(value: Any) -> str | dict[str, str] | None:
    """A template as a config file writes it: text, a list of {name, template}, or an object of name to text."""
    match value:
        case None | str():
            return value
        case list():
            try:
                value = {one["name"]: one["template"] for one in value}
            except (KeyError, TypeError):
                value = None
    if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return value
    raise ConfigError("chat_template of the model must be a text or a list of objects with name and template.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} of the model cannot be read: {error}") from None
