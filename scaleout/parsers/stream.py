"""Pieces as one string: each token of a format becomes one private character, so that string search finds it and no spelled text.

The private characters are lone surrogates: no decoder can produce them, so model text never holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from attrs import field, frozen

from scaleout.core import Piece

_FIRST = 0xD800
_PRIVATE = re.compile("[\ud800-\udfff]")
_PRIVATE_KEPT = re.compile("([\ud800-\udfff])")

WHITESPACE = " \t\r\n\f\v"
"""What counts as layout next to a marker."""


@frozen
class Alphabet:
    """Which spellings stand for one token, and the private character of each. `dropped` tokens (end of turn) never show."""

    chars: Mapping[str, str]
    spellings: Mapping[str, str]
    dropped: frozenset[str]

    @classmethod
    def of(cls, tokens: Iterable[str], dropped: Iterable[str]) -> Alphabet:
        """`tokens` are spellings with a token of their own, at most 2048."""
        chars = {token: chr(_FIRST + n) for n, token in enumerate(dict.fromkeys(tokens))}
        return cls(chars, {char: token for token, char in chars.items()}, frozenset(dropped) - chars.keys())

    def read(self, pieces: Sequence[Piece]) -> str:
        """The pieces as one string. Special tokens that the format does not know are left out."""
        out = []
        for piece in pieces:
            text = piece.text
            if piece.marker:
                char = self.chars.get(text)
                if char is not None:
                    out.append(char)
                elif not piece.special and text not in self.dropped:
                    out.append(text)
            else:
                out.append(text if text.isascii() else _PRIVATE.sub("\ufffd", text))
        return "".join(out)

    def encode(self, spelling: str) -> str:
        """A marker of a format as it looks in the stream."""
        if spelling in self.chars:
            return self.chars[spelling]
        for token in sorted(self.chars, key=len, reverse=True):
            spelling = spelling.replace(token, self.chars[token])
        return spelling

    def spell(self, text: str) -> str:
        """Stream text as the model spelled it."""
        if text.isascii() or _PRIVATE.search(text) is None:
            return text
        return _PRIVATE.sub(lambda m: self.spellings[m[0]], text)

    def owns(self, text: str) -> bool:
        """Are all private characters of the text ours?"""
        return text.isascii() or all(char in self.spellings for char in _PRIVATE.findall(text))


@cache
def _skipping(also: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(WHITESPACE + also)}]*")


def skip(text: str, at: int, also: str = "") -> int:
    """The position of the next character that is no whitespace and none of `also`."""
    found = _skipping(also).match(text, at)
    return found.end() if found else at


def number_tokens(text: str) -> str | list[str | int]:
    """Text for JSON: as it is, or `[text, token, text, token, …, text]` with the tokens as numbers when tokens stand in it."""
    if _PRIVATE.search(text) is None:
        return text
    return [ord(part) - _FIRST if _PRIVATE.match(part) else part for part in _PRIVATE_KEPT.split(text)]


def join_tokens(parts: Sequence[object]) -> str:
    """The inverse of `number_tokens`. A part that it cannot have written becomes a token that no alphabet owns."""
    return "".join(
        part if isinstance(part, str) else chr(_FIRST + part) if type(part) is int and 0 <= part < 2048 else "\udfff"
        for part in parts
    )


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


@frozen
class Markers:
    """Words to look for in the stream: where one stands, and where the text ends in the beginning of one."""

    words: tuple[str, ...] = field(default=(), converter=_unique)
    whole: re.Pattern[str] = field(init=False, repr=False, eq=False)
    begun: re.Pattern[str] = field(init=False, repr=False, eq=False)
    first: frozenset[str] = field(init=False, repr=False, eq=False)
    starts: re.Pattern[str] = field(init=False, repr=False, eq=False)
    """A character that a word begins with."""
    longest: int = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        starts = {word[:n] for word in self.words for n in range(1, len(word))}
        object.__setattr__(self, "whole", re.compile(_either(self.words)))
        object.__setattr__(self, "begun", re.compile(_either(starts) + r"\Z"))
        object.__setattr__(self, "first", frozenset(word[0] for word in self.words))
        object.__setattr__(self, "starts", re.compile(_either(self.first)))
        object.__setattr__(self, "longest", max(map(len, self.words), default=1))

    def last(self, text: str) -> re.Match[str] | None:
        """The last word that stands in the text."""
        found = list(self.whole.finditer(text))
        return found[-1] if found else None

    def sure(self, text: str, at: int) -> int:
        """Up to where the text from `at` on, which holds no marker, cannot become a part of one."""
        found = self.begun.search(text, max(at, len(text) - self.longest + 1))
        return found.start() if found else len(text)


def _either(words: Iterable[str]) -> str:
    """A pattern for any of the words, the longest first; one that never matches when there are none."""
    return "(?:" + ("|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)") + ")"
