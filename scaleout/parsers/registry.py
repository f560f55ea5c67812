"""Finds formats: by module, by the peer's parser names, by what a model's template and vocabulary hold."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from scaleout.parsers import formats
from scaleout.parsers.format import Format, compose, only


def _load() -> dict[str, Format]:
    names = sorted(module.name for module in pkgutil.iter_modules(formats.__path__))
    found = {}
    for name in names:
        format = import_module(f"{formats.__name__}.{name}").FORMAT
        if not isinstance(format, Format) or format.name != name:
            raise TypeError(f"parsers/formats/{name}.py must export FORMAT, a Format named {name!r}")
        found[name] = format
    return found


FORMATS: Mapping[str, Format] = MappingProxyType(_load())
"""Every format by name."""

_TOOL_PARSERS = {alias: f for f in FORMATS.values() for alias in (*f.tool_parsers, *([f.name] if f.calls else []))}
_REASONING_PARSERS = {
    alias: f for f in FORMATS.values() for alias in (*f.reasoning_parsers, *([f.name] if f.thought else []))
}


def find_format(tool_parser: str | None, reasoning_parser: str | None) -> Format | None:
    """The format for a pair of parser names, ours or the peer's; None for none. Raises ValueError for a name that is neither."""
    calls = _named(tool_parser, _TOOL_PARSERS, "tool call parser")
    thoughts = _named(reasoning_parser, _REASONING_PARSERS, "reasoning parser")
    if calls is None:
        return thoughts and only(thoughts, "thought")
    if thoughts is None:
        return only(calls, "calls")
    return compose(thoughts, calls)


def detect_format(chat_template: str | None, added_tokens: Iterable[str]) -> Format | None:
    """The format that a model's template and vocabulary speak for most: all signs of a group found, the longest group first.

    Thoughts and calls are looked for apart when no family has both, so a hermes model that thinks is found too.
    """
    text = "\n".join((chat_template or "", *added_tokens))
    best = sorted(FORMATS.values(), key=lambda format: -_signs_found(format, text))
    fitting = [format for format in best if _signs_found(format, text)]
    if not fitting:
        return None
    chosen = fitting[0]
    if chosen.thought is None:
        thoughts = next((format for format in fitting if format.calls is None), None)
        return compose(thoughts, chosen) if thoughts else chosen
    if chosen.calls is None:
        calls = next((format for format in fitting if format.thought is None), None)
        return compose(chosen, calls) if calls else chosen
    return chosen


def _signs_found(format: Format, text: str) -> int:
    """How many signs of the format's best group are there, 0 unless all are."""
    return max((len(group) for group in format.signs if all(sign in text for sign in group)), default=0)


def _named(name: str | None, known: Mapping[str, Format], what: str) -> Format | None:
    if not name:
        return None
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {what} {name!r}{hint} Known: {', '.join(sorted(known))}")
    return known[name]
