"""Calls written as `call:NAME{key:value,…}` with a token as quotation mark (FORMATS 5, Gemma)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

from attrs import evolve, field, frozen

from scaleout.parsers.bodies.arguments import (
    OVERRUN,
    argue_text,
    begin_object,
    begin_value,
    gather,
    gathered,
    say_junk,
    write_key,
)
from scaleout.parsers.body import bound_markers
from scaleout.parsers.literals import escape, quote, typed
from scaleout.parsers.machine import Reader
from scaleout.parsers.names import good_name
from scaleout.parsers.state import HOLD_LIMIT, NESTING_LIMIT, CallState, JsonState, grown, joined
from scaleout.parsers.stream import Alphabet, Markers, skip

_HEADER = re.compile(r"(?:(?:call\s*)?:)?\s*(.*)", re.DOTALL)
_BARE = {"k": re.compile(r"[^:,{}\[\]\ud800-\udfff]+"), "v": re.compile(r"[^,{}\[\]\ud800-\udfff]+")}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@frozen
class Braces:
    """`delimiter` stands on both sides of a string, in which nothing is escaped. It must be a token.

    The bracket that opened the arguments is kept in `json.stack`, before those of a nested value.
    """

    delimiter: str = field(metadata={"marker": True})
    name: str = "braces"
    first: str = "name"
    types: str = "all"
    stops: Markers = field(factory=Markers)
    names: Markers = field(factory=Markers)
    strings: Markers = field(factory=Markers)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Braces:
        bound = evolve(self, **bound_markers(self, alphabet), stops=stops)
        return evolve(bound, names=Markers(("{", "(", *stops.words)), strings=Markers((bound.delimiter,)))

    def step(self, reader: Reader) -> bool:
        call = reader.state.call
        assert call is not None
        return self.steps[call.step](self, reader, call)

    def finish(self, reader: Reader) -> None:
        call = reader.state.call
        assert call is not None
        if not call.announced:
            reader.fail()
            return
        if call.step == "key":
            say_junk(reader, call)
        reader.end("unclosed", self.first)
        reader.leave()

    def _name(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.names)
        if not end:
            return False
        header = _HEADER.match(gathered(reader, call, end).strip())
        name = header[1] if header else ""
        if end not in ("{", "(") or not good_name(name):
            reader.at -= len(end)
            reader.fail()
        elif begin_object(reader, name):
            call.json, call.step = JsonState(stack=end), "key"
        return True

    def _ends(self, call: CallState, *more: str) -> Markers:
        """What ends a stretch of bare text: a comma, the closing bracket of the call, and any marker."""
        assert call.json is not None
        return _ends(self.stops.words, _CLOSERS.get(call.json.stack[:1], "}"), *more)

    def _key(self, reader: Reader, call: CallState) -> bool:
        """A key up to its colon; also the place where the arguments may end."""
        end = gather(reader, call, self._ends(call, ":", self.delimiter))
        if not end or end == OVERRUN:
            return bool(end)
        if end == ":":
            call.key, call.value, call.step = joined(call.value).strip(), (), "value"
        elif end == self.delimiter and not joined(call.value).strip():
            call.value, call.step = (), "quoted key"
        else:
            say_junk(reader, call)
            self._go_on(reader, call, end)
        return True

    def _quoted_key(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.strings)
        if end == self.delimiter:
            call.step = "key"
        return bool(end)

    def _value(self, reader: Reader, call: CallState) -> bool:
        """The first character of a value tells how it is written."""
        assert call.json is not None
        text = reader.text
        reader.at = at = skip(text, reader.at)
        kinds = reader.state.types.get(call.name, {}).get(call.key, "")
        if at == len(text) or (self.stops.begun.match(text, at) and not reader.final):
            return False
        if text[at] == self.delimiter:
            reader.at += 1
            begin_value(reader, call, call.key, kinds or "s")
        elif text[at] in "{[":
            write_key(reader, call, call.key)
            call.json.expect, call.mark, call.step = "v", 0, "nested"
        elif text[at] == "," or self._ends(call).whole.match(text, at):
            call.value, call.key, call.step = (call.key + ":",), "", "key"
        else:
            write_key(reader, call, call.key)
            call.kinds, call.step = kinds, "bare"
        return True

    def _text(self, reader: Reader, call: CallState) -> bool:
        text, at = reader.text, reader.at
        end = text.find(self.delimiter, at)
        argue_text(reader, text[at : end if end >= 0 else len(text)])
        reader.at = end + 1 if end >= 0 else len(text)
        if end >= 0:
            reader.argue('"')
            call.step = "key"
        return end >= 0

    def _held(self, reader: Reader, call: CallState) -> bool:
        """A delimited value that the schema may want as something else than a string."""
        end = gather(reader, call, self.strings)
        if end == self.delimiter:
            self._argue_held(reader, call)
        return bool(end)

    def _bare(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self._ends(call))
        if end and end != OVERRUN:
            self._argue_held(reader, call)
            self._go_on(reader, call, end)
        return bool(end)

    def _argue_held(self, reader: Reader, call: CallState) -> None:
        reader.argue(typed(reader.spell(joined(call.value)), call.kinds))
        call.value, call.kinds, call.step = (), "", "key"

    def _go_on(self, reader: Reader, call: CallState, end: str) -> None:
        """After a comma, a closing bracket or a marker."""
        assert call.json is not None
        call.step = "key"
        if end == _CLOSERS.get(call.json.stack[:1], "}"):
            reader.argue("}")
            reader.end("ok" if call.sound else "malformed", self.first)
            reader.leave()
        elif end in self.stops.words:
            reader.at -= len(end)
            reader.end("malformed", self.first)
            reader.leave()

    # ------------------------------------------------------------------------------ values in brackets

    def _nested(self, reader: Reader, call: CallState) -> bool:
        """An object or list inside a value: held until its last bracket closes.

        `json.expect`: v a value   V a value or ]   k a key or }   : a colon   , a comma or the closing bracket. `json.string`: inside
        delimiters. `call.key`: a bare word; `call.mark`: how many characters have been read.
        """
        json = call.json
        assert json is not None
        while reader.at < len(reader.text):
            start = reader.at
            if json.string:
                self._nested_string(reader, call, json)
            elif self.stops.whole.match(reader.text, start):
                reader.end("malformed", self.first)
                reader.leave()
                return True
            else:
                self._nested_token(reader, call, json)
            call.mark += reader.at - start
            if call.mark > HOLD_LIMIT:
                reader.at -= call.mark - HOLD_LIMIT
                reader.end("malformed", self.first)
                reader.leave()
                return True
            if len(json.stack) <= 1:
                reader.argue(joined(call.value))
                call.value, call.mark, call.step = (), -1, "key"
                return True
        return False

    def _nested_string(self, reader: Reader, call: CallState, json: JsonState) -> None:
        text, at = reader.text, reader.at
        end = text.find(self.delimiter, at)
        call.value = grown(call.value, escape(reader.spell(text[at : end if end >= 0 else len(text)])))
        reader.at = end + 1 if end >= 0 else len(text)
        if end >= 0:
            json.string = 0
            self._nested_item(call, json, '"')

    def _nested_item(self, call: CallState, json: JsonState, text: str) -> None:
        """A key or a value is complete."""
        call.value = grown(call.value, text)
        json.expect = ":" if json.expect == "k" else ","

    def _nested_token(self, reader: Reader, call: CallState, json: JsonState) -> None:
        """A bare word, whitespace or a character that stands for itself."""
        text, at = reader.text, reader.at
        if not call.key:
            reader.at = skip(text, at)
            if reader.at > at:
                return
        bare = _BARE["k" if json.expect == "k" else "v"].match(text, at) if json.expect in ("k", "v", "V") else None
        if bare:
            call.key += bare[0]
            reader.at = bare.end()
        else:
            reader.at = at + 1
            self._nested_mark(call, json, text[at])

    def _nested_mark(self, call: CallState, json: JsonState, char: str) -> None:
        if word := call.key.strip():
            self._nested_item(call, json, quote(word) if json.expect == "k" else typed(word, ""))
            call.key = ""
        top = json.stack[-1:]
        if char in "{[" and json.expect in ("v", "V") and len(json.stack) < NESTING_LIMIT:
            json.stack += char
            json.expect = "k" if char == "{" else "V"
            call.value = grown(call.value, char)
        elif char == ":" and json.expect == ":":
            json.expect = "v"
            call.value = grown(call.value, ": ")
        elif char == "," and json.expect == ",":
            json.expect = "k" if top == "{" else "v"
            call.value = grown(call.value, ", ")
        elif char == _CLOSERS.get(top):
            if json.expect not in (",", "k", "V"):
                call.sound = False
            json.stack = json.stack[:-1]
            json.expect = ","
            call.value = grown(call.value, char)
        elif char == self.delimiter and json.expect in ("k", "v", "V"):
            json.string = 1
            call.value = grown(call.value, '"')
        else:
            call.sound = False

    json_steps: ClassVar[frozenset[str]] = frozenset({"key", "quoted key", "value", "text", "held", "bare", "nested"})
    announced_steps: ClassVar[frozenset[str]] = json_steps
    steps: ClassVar[Mapping[str, Callable[[Braces, Reader, CallState], bool]]] = {
        "name": _name,
        "key": _key,
        "quoted key": _quoted_key,
        "value": _value,
        "text": _text,
        "held": _held,
        "bare": _bare,
        "nested": _nested,
    }


@cache
def _ends(stops: tuple[str, ...], closer: str, *more: str) -> Markers:
    return Markers((",", closer, *more, *stops))
