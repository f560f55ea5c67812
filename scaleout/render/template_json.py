"""The `tojson` filter of chat templates: JSON as the json module writes it, without HTML escapes."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = json.JSONEncoder(ensure_ascii=False)
_NOT_ASCII = re.compile("[^\x00-~]")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`value` as JSON text, with transformers' options. Marks (lone low surrogates) stay what they are, also in ASCII."""
    if indent is None and separators is None and not sort_keys:
        text = _PLAIN.encode(value)  # dumps would make an encoder each time
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC00 <= code <= 0xDFFF:
        return match[0]
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"
