"""Follows one JSON value through any number of chunks: where it ends, and whether it is valid. Knows no calls and no formats.

Only the brackets, the strings and a handful of codes are kept, so the state does not grow with the value:

    stack    the open brackets, outermost first
    expect   what may come next:  v a value   V a value or ]   k a key or }   K a key   : a colon   , a comma or the closing bracket
    string   0 outside   1 inside   2 after a backslash   3-6 that many less 2 hexadecimal digits to come
    word     a number or a literal that is being read: "n" and its state, or "l" and the letters to come
"""

from __future__ import annotations

import re
from typing import Literal

from scaleout.parsers.state import NESTING_LIMIT, JsonState
from scaleout.parsers.stream import Markers

Outcome = Literal["more", "done", "marker"]

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}

_DIGITS = "123456789"
_NUMBER: dict[str, dict[str, str]] = {
    # z a leading zero   i whole digits   d behind the point   f its digits   x behind e   y behind its sign   p its digits
    "": {"-": "m", "0": "z", **dict.fromkeys(_DIGITS, "i")},
    "m": {"0": "z", **dict.fromkeys(_DIGITS, "i")},
    "z": {".": "d", "e": "x", "E": "x"},
    "i": {"0": "i", **dict.fromkeys(_DIGITS, "i"), ".": "d", "e": "x", "E": "x"},
    "d": dict.fromkeys("0" + _DIGITS, "f"),
    "f": {**dict.fromkeys("0" + _DIGITS, "f"), "e": "x", "E": "x"},
    "x": {**dict.fromkeys("0" + _DIGITS, "p"), "+": "y", "-": "y"},
    "y": dict.fromkeys("0" + _DIGITS, "p"),
    "p": dict.fromkeys("0" + _DIGITS, "p"),
}
_COMPLETE = frozenset({"nz", "ni", "nf", "np", "l"})


def follow(json: JsonState, text: str, at: int, stops: Markers, floor: int = 0) -> tuple[int, Outcome]:
    """Read on from `at` and change `json`. Returns how far, and why it stopped there.

    "done": a value has just ended with `floor` brackets open around it. "marker": a stop stands at the position. "more": the text
    is used up, but for the beginning of a stop.
    """
    size = len(text)
    while at < size:
        if json.string:
            at = read_string(json, text, at)
            if not json.string and _value_ends(json, floor):
                return at, "done"
            continue
        char = text[at]
        if char in stops.first:
            if stops.whole.match(text, at):
                return at, "marker"
            if stops.begun.match(text, at):
                return at, "more"
        word = _WORD.match(text, at)
        if word:
            at = word.end()
            _read_word(json, word[0], whole=at < size)
            continue
        if json.word:
            _end_word(json)
            if json.expect == "," and len(json.stack) + json.deep == floor:
                return at, "done"
        at += 1
        if char == '"':
            json.string = 1
            if json.expect not in ("v", "V", "k", "K"):
                json.valid = False
        elif char in "{[":
            _open(json, char)
        elif char in "}]":
            _close(json, char)
            if len(json.stack) + json.deep <= floor:
                return at, "done"
        elif char == ",":
            if json.expect != "," or not json.stack:
                json.valid = False
            json.expect = "K" if json.stack[-1:] == "{" else "v"
        elif char == ":":
            if json.expect != ":":
                json.valid = False
            json.expect = "v"
        elif char in " \t\r\n":
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        else:
            json.valid = False
    return at, "more"


def read_string(json: JsonState, text: str, at: int) -> int:
    """Read on inside a string. Returns the position after its closing quote (then `json.string` is 0), or the end of the text."""
    size = len(text)
    while at < size:
        if json.string == 1:
            at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
            if at == size:
                break
            char = text[at]
            at += 1
            if char == '"':
                json.string = 0
                break
            if char == "\\":
                json.string = 2
            else:
                json.valid = False
            continue
        char = text[at]
        if json.string == 2:
            json.string = 6 if char == "u" else 1
            json.valid = json.valid and (char in _ESCAPES or char == "u")
            at += 1
        elif char in _HEX:
            json.string = 1 if json.string == 3 else json.string - 1
            at += 1
        else:
            json.string = 1
            json.valid = False
    return at


def _open(json: JsonState, char: str) -> None:
    if json.expect not in ("v", "V"):
        json.valid = False
    if len(json.stack) < NESTING_LIMIT and not json.deep:
        json.stack += char
    else:
        json.deep += 1
        json.valid = False
    json.expect = "k" if char == "{" else "V"


def _close(json: JsonState, char: str) -> None:
    if json.deep:
        json.deep -= 1
    else:
        if json.stack[-1:] != ("{" if char == "}" else "[") or json.expect not in (
            (",", "k") if char == "}" else (",", "V")
        ):
            json.valid = False
        json.stack = json.stack[:-1]
    json.expect = ","


def _value_ends(json: JsonState, floor: int) -> bool:
    """After a string: was it a key, or a value, and is that the value that the caller waits for?"""
    if json.expect in ("k", "K"):
        json.expect = ":"
        return False
    json.expect = ","
    return len(json.stack) + json.deep == floor


def _read_word(json: JsonState, word: str, whole: bool) -> None:
    if not json.word:
        if json.expect not in ("v", "V"):
            json.valid = False
        if whole and _SCALAR.fullmatch(word):
            json.word = "l"
            return
    code = json.word
    for char in word:
        if not code:
            code = "l" + _LITERALS[char] if char in _LITERALS else "n" + _NUMBER[""].get(char, "?")
        elif code[0] == "n":
            code = "n" + _NUMBER.get(code[1:], {}).get(char, "?")
        else:
            code = "l" + code[2:] if code[1:2] == char else "n?"
        if code == "n?":
            break
    json.word = code


def _end_word(json: JsonState) -> None:
    if json.word not in _COMPLETE:
        json.valid = False
    json.word = ""
    json.expect = ","
