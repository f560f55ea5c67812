"""JSON text for values that a model wrote as bare text (FORMATS 3.5). The letters for types are those of `schema`."""

from __future__ import annotations

import json
import re

from scaleout.parsers.json_scan import follow
from scaleout.parsers.state import JsonState
from scaleout.parsers.stream import Markers

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NOTHING = Markers()


def quote(text: str) -> str:
    """A JSON string, other scripts as they are."""
    return json.dumps(text, ensure_ascii=False)


def escape(text: str) -> str:
    """The inside of a JSON string; a stretch of text may be escaped in any cuts."""
    return quote(text)[1:-1]


def is_json(text: str) -> bool:
    """Is this trimmed text one valid JSON value, nested no deeper than the limit?"""
    state = JsonState()
    end, _ = follow(state, text + " ", 0, _NOTHING)
    return state.valid and not state.stack and not state.string and state.expect == "," and end >= len(text)


def typed(text: str, kinds: str) -> str:
    """The first JSON value of the allowed types that the trimmed text spells; else itself if it is JSON, else a string."""
    text = text.strip()
    low = text.lower()
    if "z" in kinds and low == "null":
        return "null"
    if ("i" in kinds or "n" in kinds) and _INTEGER.fullmatch(text):
        return text
    if "n" in kinds and _NUMBER.fullmatch(text):
        return text
    if "b" in kinds and low in ("true", "false"):
        return low
    if (("o" in kinds and text[:1] == "{") or ("a" in kinds and text[:1] == "[")) and is_json(text):
        return text
    if "s" in kinds or not is_json(text):
        return quote(text)
    return text
