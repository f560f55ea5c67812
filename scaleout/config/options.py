"""What one setting is made of: how its text is read, where it stands in the help, and which names it goes by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, field, frozen

Reader = Callable[[Any], Any]
"""From what a flag, a variable or a file gave (text, or a typed value from a file) to the value; ValueError says what was expected."""


@frozen
class Kind:
    """A type of value: its reader, the word the help shows, and whether several values may follow one flag."""

    read: Reader
    shown: str
    many: bool = False
    switch: bool = False


@frozen
class Option:
    """One setting as data. Flag, environment variables and file key are all derived from it."""

    kind: Kind
    group: str
    help: str
    name: str | None = None
    aliases: Sequence[str] = ()
    vllm_env: str | None = None
    opposite: str | None = None
    """A second flag, which switches this setting off."""
    secret: bool = False
    """Never shown in messages."""


def option(
    default: Any,
    kind: Kind,
    help: str,
    *,
    group: str,
    name: str | None = None,
    aliases: Sequence[str] = (),
    vllm_env: str | None = None,
    opposite: str | None = None,
    secret: bool = False,
) -> Any:
    """An attrs field that can be set from outside. A callable default is computed from the object's earlier fields."""
    if callable(default):
        default = Factory(default, takes_self=True)
    described = Option(kind, group, help, name, aliases, vllm_env, opposite, secret)
    return field(default=default, metadata={"option": described}, kw_only=True, repr=not secret)


# ---------------------------------------------------------------------------------------------- kinds of values

_SUFFIX = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def _whole_number(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in _SUFFIX or ("." in match[1] and not match[2]):
        raise ValueError("a whole number is needed (4096, 4k = 4000, 4K = 4096, 64MiB)")
    return int(float(match[1]) * _SUFFIX[match[2]]) if "." in match[1] else int(match[1]) * _SUFFIX[match[2]]


def integer(low: int, high: int | None = None, words: Mapping[str, int | None] | None = None) -> Kind:
    """Whole numbers from `low` to `high`; `words` are spellings with a meaning of their own, such as auto."""

    def read(value: Any) -> int | None:
        if words and str(value) in words:
            return words[str(value)]
        number = _whole_number(value)
        if number < low or (high is not None and number > high):
            raise ValueError(f"must be between {low} and {high}" if high is not None else f"must be at least {low}")
        return number

    return Kind(read, "N")


def decimal(low: float, high: float | None = None, negative: float | None = None) -> Kind:
    """Decimal numbers from `low` to `high`; `negative` is what a negative number stands for, where it is allowed."""

    def read(value: Any) -> float:
        try:
            number = float("no" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            raise ValueError("a number is needed") from None
        if negative is not None and number < 0:
            return negative
        if not (low <= number and (high is None or number <= high)):
            raise ValueError(
                f"must be between {low:g} and {high:g}" if high is not None else f"must be at least {low:g}"
            )
        return number

    return Kind(read, "X")


def choice(*words: str) -> Kind:
    """One of `words`, in any case."""

    def read(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise ValueError("must be one of " + ", ".join(words))
        return word

    return Kind(read, "|".join(words))


def _read_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be one of 1, 0, true, false")


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text is needed")
    return value


def _read_texts(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_read_text(item) for item in items if item != "")


def _read_list(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    return tuple(item.strip() for item in _read_texts(items) if item.strip())


def _read_object(value: Any) -> Mapping[str, Any]:
    import json

    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("a JSON object is needed") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object is needed")
    return value


def _read_template(value: Any) -> str:
    text = _read_text(value)
    if "{" in text or "\n" in text:
        return text
    path = Path(text).expanduser()
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except OSError as exc:
            raise ValueError(exc.strerror) from None
    if "/" in text or path.suffix:
        raise ValueError("there is no such file, and it is no template either")
    return text


TEXT = Kind(_read_text, "TEXT")
TEXTS = Kind(_read_texts, "TEXT", many=True)
COMMA_LIST = Kind(_read_list, "A,B")
SWITCH = Kind(_read_switch, "", switch=True)
TEMPLATE = Kind(_read_template, "FILE")
"""The text of a template, from the name of its file or as it stands. A bare word is left for the model's own named templates."""
OBJECT = Kind(_read_object, "JSON")
