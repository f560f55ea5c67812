"""What bytes one token stands for, read from a tokenizer's decoder. Knows no vocabulary: a spelling goes in, bytes come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

Spelling = str
"""A token as the vocabulary writes it: "Ġthere", "▁there", "<0xF0>"."""

Step = Callable[[Spelling], Spelling | bytes]
"""One decoder, applied to one token. Bytes are final; later steps leave them alone."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_alphabet() -> dict[str, int]:
    """The 256 characters in which byte-level vocabularies write bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def spell_bytes(data: bytes) -> Spelling:
    """The byte-level spelling of `data`."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    return "".join(letters[byte] for byte in data)


def _byte_level(spelling: Spelling) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[letter] for letter in spelling])
    except KeyError:  # an added token written in plain text
        return spelling.encode()


def _byte_fallback(spelling: Spelling) -> Spelling | bytes:
    found = _BYTE_TOKEN.fullmatch(spelling)
    return bytes([int(found[1], 16)]) if found else spelling


def _replace(pattern: str, content: str) -> Step:
    return lambda spelling: spelling.replace(pattern, content)


def _steps(decoder: Mapping[str, Any]) -> list[Step] | None:
    """The per-token steps of a decoder as tokenizer.json describes it, or None when a token's text depends on its neighbours."""
    match decoder:
        case {"type": "ByteLevel"}:
            return [_byte_level]
        case {"type": "ByteFallback"}:
            return [_byte_fallback]
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return [_replace(pattern, content)]
        case {"type": "Metaspace", "replacement": mark}:
            return [_replace(mark, " ")]
        case {"type": "Sequence", "decoders": [*decoders]}:
            return _sequence(decoders)
        case _:
            return None


def _sequence(decoders: Sequence[Mapping[str, Any]]) -> list[Step] | None:
    joined: list[Step] = []
    fused = False
    for decoder in decoders:
        match decoder:
            case {"type": "Fuse"}:
                fused = True
                continue
            # On the fused text it acts at the start alone, and an answer never starts a text: it continues a prompt.
            case {"type": "Strip", "content": " ", "stop": 0} if fused:
                continue
        steps = _steps(decoder)
        if steps is None or fused or _byte_level in joined:
            return None
        joined += steps
    return joined


def byte_reader(decoder: Mapping[str, Any] | None) -> Callable[[Spelling], bytes] | None:
    """A function from a token's spelling to its bytes in the middle of a text.

    `decoder`: the section of that name in tokenizer.json. Returns None when tokens cannot be read one by one (WordPiece and its like).
    """
    steps = _steps(decoder) if decoder else None
    if not steps:
        return None

    def read(spelling: Spelling) -> bytes:
        value: Spelling | bytes = spelling
        for step in steps:
            if isinstance(value, bytes):
                break
            value = step(value)
        return value if isinstance(value, bytes) else value.encode()

    return read
