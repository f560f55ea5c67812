"""Calls written as Python: `name(key=value, …)`, in a list or one per line (FORMATS 3.6).

A call is announced with its whole arguments at its closing parenthesis. Until then its text is held, and the JSON is built beside it,
left to right, so that reading stays linear in any number of chunks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import evolve, field, frozen

from scaleout.parsers.literals import escape, quote
from scaleout.parsers.machine import Reader
from scaleout.parsers.state import HOLD_LIMIT, NESTING_LIMIT, CallState, JsonState, grown, joined
from scaleout.parsers.stream import WHITESPACE, Alphabet, Markers, skip

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_KEY = re.compile(r"[^\W\d]\w*")
_NAME_PART = re.compile(r"[\w.]+")
_WORD = re.compile(r"[\w.+-]+")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"([-+]?)0*([0-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"([-+]?)((?:[0-9](?:_?[0-9])*)?)\.?((?:[0-9](?:_?[0-9])*)?)((?:[eE][-+]?[0-9]+)?)")
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}

_SIMPLE = {
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_HEX = {"x": 2, "u": 4, "U": 8}
_LONGEST_NAME = 100

_OPEN = "[({"
_CLOSERS = {"[": "]", "t": ")", "{": "}", "(": ")"}
_AFTER_COMMA = {"(": "K", "{": "D", "[": "W", "t": "W"}


@frozen
class Pythonic:
    """`brackets`: the calls stand in a list. `first`: "list" where its bracket comes after the opener, "call" where it is the opener."""

    brackets: bool = True
    name: str = "pythonic"
    first: str = "list"
    types: str = ""
    stops: Markers = field(factory=Markers)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Pythonic:
        return evolve(self, stops=stops)

    def step(self, reader: Reader) -> bool:
        call = reader.state.call
        assert call is not None
        return self.steps[call.step](self, reader, call)

    def finish(self, reader: Reader) -> None:
        call = reader.state.call
        assert call is not None
        if call.step == "next":
            reader.leave()
        else:
            reader.at = len(reader.text)
            reader.fail()

    # ------------------------------------------------------------------------------ around the calls

    def _list(self, reader: Reader, call: CallState) -> bool:
        char = _next_char(reader)
        if char == "[" and self.brackets:
            reader.at += 1
        elif char and self.brackets:
            reader.fail()
        if char:
            call.step = "call"
        return char != ""

    def _call(self, reader: Reader, call: CallState) -> bool:
        """The first call: there must be one."""
        if _next_char(reader) == "":
            return False
        call.step = "name"
        return True

    def _next(self, reader: Reader, call: CallState) -> bool:
        """After a call: the next one, the end of the list, or a marker."""
        char = _next_char(reader, ",")
        reader.mark()
        if char == "":
            return False
        if char == "]" and self.brackets:
            reader.at += 1
            reader.leave()
        elif self.stops.whole.match(reader.text, reader.at):
            reader.leave()
        elif self.stops.begun.match(reader.text, reader.at) and not reader.final:
            return False
        else:
            call.step = "name"
        return True

    def _name(self, reader: Reader, call: CallState) -> bool:
        part = _NAME_PART.match(reader.text, reader.at)
        if part:
            call.key += part[0]
            reader.at = part.end()
        if reader.at == len(reader.text):
            return False
        if _NAME.fullmatch(call.key):
            call.name, call.key, call.step = call.key, "", "parenthesis"
        else:
            reader.fail()
        return True

    def _parenthesis(self, reader: Reader, call: CallState) -> bool:
        char = _next_char(reader)
        if char == "(":
            reader.at += 1
            call.json, call.value, call.step = JsonState(stack="(", expect="k"), ("{",), "arguments"
        elif char:
            reader.fail()
        return char != ""

    # ------------------------------------------------------------------------------ inside the parentheses

    def _arguments(self, reader: Reader, call: CallState) -> bool:
        """Read tokens up to the closing parenthesis.

        `json.stack`: the open brackets, a tuple's is "t". `json.expect`: k a key   d a key of a dict   V a value   , a comma   : a
        colon   = an equals sign   v a value that must come. K, D and W are k, d and V after a comma that is not written yet: a last
        comma is allowed. `json.word`: the quote of an open string; `call.key`: a word or an escape that is not complete.
        """
        json = call.json
        assert json is not None
        while reader.at < len(reader.text) and reader.offset() <= HOLD_LIMIT:
            if json.word:
                good = self._string(reader, call, json)
            elif word := _WORD.match(reader.text, reader.at):
                call.key += word[0]
                reader.at = word.end()
                good = True
            else:
                good = self._mark(reader, call, json)
            if not good:
                reader.fail()
                return True
            if not json.stack:
                arguments = joined(call.value)
                if reader.announce(call.name):
                    reader.argue(arguments)
                    reader.end("ok", "next")
                return True
        return False

    def _mark(self, reader: Reader, call: CallState, json: JsonState) -> bool:
        """A character that belongs to no word: it ends the word before it, and then stands for itself."""
        char = reader.text[reader.at]
        reader.at += 1
        if call.key:
            word, call.key = call.key, ""
            if char in "'\"" or not self._word(call, json, word):
                return False
        if char in WHITESPACE:
            return True
        if char in "'\"" and json.expect in "vVWdD":
            self._item(call, json)
            json.word, json.string = char, 1
            return _put(call, '"')
        if char in _OPEN:
            return self._open(call, json, char)
        if char in ")]}":
            return self._close(call, json, char)
        if char == "," and json.expect == ",":
            json.expect = _AFTER_COMMA[json.stack[-1]]
            return True
        if char == json.expect and char in "=:":
            json.expect = "v"
            return _put(call, ": ")
        return False

    def _item(self, call: CallState, json: JsonState) -> None:
        """A key or value begins: the comma before it can be written."""
        if json.expect in "KDW":
            _put(call, ", ")
        json.expect = "d" if json.expect in "dD" else "v"

    def _word(self, call: CallState, json: JsonState, word: str) -> bool:
        """A key, a number or a word like True is complete."""
        if json.expect in "kK" and _KEY.fullmatch(word):
            self._item(call, json)
            json.expect = "="
            return _put(call, quote(word))
        literal = _literal(word)
        if literal is None or json.expect not in "vVWdD":
            return False
        self._item(call, json)
        return _put(call, f'"{literal}"' if json.expect == "d" else literal) and self._ends(json)

    def _open(self, call: CallState, json: JsonState, bracket: str) -> bool:
        if json.expect not in "vVW" or len(json.stack) >= NESTING_LIMIT:
            return False
        self._item(call, json)
        json.stack += "t" if bracket == "(" else bracket
        json.expect = "d" if bracket == "{" else "V"
        return _put(call, "{" if bracket == "{" else "[")

    def _close(self, call: CallState, json: JsonState, bracket: str) -> bool:
        top = json.stack[-1]
        if _CLOSERS[top] != bracket or json.expect not in ",kKVWdD":
            return False
        json.stack = json.stack[:-1]
        json.expect = ","
        return _put(call, "]" if top in "[t" else "}")

    def _ends(self, json: JsonState) -> bool:
        """A literal is complete: the key of a dict, or a value."""
        json.expect = ":" if json.expect == "d" else ","
        return True

    # ------------------------------------------------------------------------------ inside a string

    def _string(self, reader: Reader, call: CallState, json: JsonState) -> bool:
        if json.string == 2:
            return self._escape(reader, call, json)
        plain = _PLAIN[json.word].match(reader.text, reader.at)
        if plain:
            reader.at = plain.end()
            return _put(call, escape(reader.spell(plain[0])))
        reader.at += 1
        if reader.text[reader.at - 1] == "\\":
            json.string = 2
            return True
        json.word, json.string = "", 0
        return _put(call, '"') and self._ends(json)

    def _escape(self, reader: Reader, call: CallState, json: JsonState) -> bool:
        """What follows a backslash, character by character in `call.key`."""
        char = reader.text[reader.at]
        seen = call.key + char
        kind = seen[0]
        if kind in "01234567" and (len(seen) == 1 or (char in "01234567" and len(seen) <= 3)):
            reader.at += 1
            call.key = seen
            return True
        if kind in "01234567":
            return _unescaped(call, json, chr(int(call.key, 8)))
        reader.at += 1
        if kind in _SIMPLE:
            return _unescaped(call, json, _SIMPLE[kind])
        if kind in _HEX:
            if len(seen) > 1 and char not in "0123456789abcdefABCDEF":
                return False
            call.key = seen
            if len(seen) <= _HEX[kind]:
                return True
            code = int(seen[1:], 16)
            return code < 0x110000 and _unescaped(call, json, chr(code))
        if kind == "N":
            call.key = seen
            if seen in ("N", "N{") or (seen.startswith("N{") and char != "}" and len(seen) < _LONGEST_NAME):
                return True
            try:
                return seen.startswith("N{") and _unescaped(call, json, unicodedata.lookup(seen[2:-1]))
            except KeyError:
                return False
        return _unescaped(call, json, "\\" + reader.spell(char))

    json_steps: ClassVar[frozenset[str]] = frozenset({"arguments"})
    announced_steps: ClassVar[frozenset[str]] = frozenset()
    steps: ClassVar[Mapping[str, Callable[[Pythonic, Reader, CallState], bool]]] = {
        "list": _list,
        "call": _call,
        "next": _next,
        "name": _name,
        "parenthesis": _parenthesis,
        "arguments": _arguments,
    }


def _next_char(reader: Reader, also: str = "") -> str:
    """The next character that is no whitespace (and none of `also`); "" when there is none yet."""
    reader.at = skip(reader.text, reader.at, also)
    return reader.text[reader.at : reader.at + 1]


def _put(call: CallState, text: str) -> bool:
    call.value = grown(call.value, text)
    return True


def _unescaped(call: CallState, json: JsonState, text: str) -> bool:
    """An escape stood for this text; half a surrogate pair stays an escape, which JSON has too."""
    call.key, json.string = "", 1
    return _put(call, f"\\u{ord(text):04x}" if "\ud800" <= text <= "\udfff" else escape(text))


def _literal(word: str) -> str | None:
    """A number, or a word for a constant, as JSON; None for anything else."""
    if word in _WORDS:
        return _WORDS[word]
    if _JSON_NUMBER.fullmatch(word):
        return word
    whole = _INTEGER.fullmatch(word)
    if whole:
        return whole[1].replace("+", "") + whole[2].replace("_", "")
    parts = _FLOAT.fullmatch(word)
    if parts and (parts[2] or parts[3]):
        sign, before, after, exponent = (part.replace("_", "") for part in parts.groups())
        return f"{sign.replace('+', '')}{before.lstrip('0') or '0'}.{after or '0'}{exponent}"
    return None
