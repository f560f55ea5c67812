"""Finds formats: by module, by the peer's parser names, by what a model's template and vocabulary hold."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from scaleout.core import Json
from scaleout.parsers import formats
from scaleout.parsers.format import Format, compose, only
from scaleout.parsers.peer_names import REFUSED, REFUSED_TOOLS
from scaleout.parsers.response_template import read_response_template


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


def find_format(
    tool_parser: str | None, reasoning_parser: str | None, response_template: Mapping[str, Json] | None = None
) -> Format | None:
    """The format for a pair of parser names, ours or the peer's; None for none. Raises ValueError for a name that is neither.

    The name "hf" stands for the `response_template` that the checkpoint brings along.
    """
    own = (
        read_response_template(response_template)
        if response_template and "hf" in (tool_parser, reasoning_parser)
        else None
    )
    calls = _named(tool_parser, _TOOL_PARSERS, "tool call parser", own)
    thoughts = _named(reasoning_parser, _REASONING_PARSERS, "reasoning parser", own)
    if calls is None:
        return thoughts and only(thoughts, "thought")
    if thoughts is None:
        return only(calls, "calls")
    return compose(thoughts, calls)


def detect_format(
    chat_template: str | None, added_tokens: Iterable[str], response_template: Mapping[str, Json] | None = None
) -> Format | None:
    """The format that a model's template and vocabulary speak for, None when they speak for none.

    Of the formats with calls the one with most signs wins; a group of signs counts when all of it is there. Thoughts are added when the
    family has none of its own and the signs of plain thoughts are there. A checkpoint of no known family may bring its own template.
    """
    text = "\n".join((chat_template or "", *added_tokens))
    found = {name: _signs_found(format, text) for name, format in FORMATS.items()}
    calls = max((name for name in FORMATS if FORMATS[name].calls), key=lambda name: found[name])
    thoughts = FORMATS["think"] if found["think"] else None
    if not found[calls]:
        return read_response_template(response_template) if response_template else thoughts
    chosen = FORMATS[calls]
    return compose(thoughts, chosen) if thoughts and not chosen.thought else chosen


def _signs_found(format: Format, text: str) -> int:
    """How many signs the format's best group has, 0 when none is there as a whole."""
    return max((len(group) for group in format.signs if all(sign in text for sign in group)), default=0)


def _named(name: str | None, known: Mapping[str, Format], what: str, own: Format | None) -> Format | None:
    if not name:
        return None
    if name == "hf":
        if own is None:
            raise ValueError(f"the {what} 'hf' needs a checkpoint with a response_template")
        return own
    if name not in known:
        reason = (REFUSED if known is _REASONING_PARSERS else {**REFUSED, **REFUSED_TOOLS}).get(name)
        if reason:
            raise ValueError(f"the {what} {name!r} is not supported: {reason}. Supported: {', '.join(sorted(known))}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {what} {name!r}{hint} Known: {', '.join(sorted(known))}")
    return known[name]
