"""Calls written as a name and pairs of tags (FORMATS 3.5): `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import evolve, field, frozen

from scaleout.parsers.bodies.arguments import (
    OVERRUN,
    argue_text,
    begin_object,
    begin_value,
    end_held,
    gather,
    gathered,
    say_junk,
)
from scaleout.parsers.body import bound_markers
from scaleout.parsers.machine import Reader
from scaleout.parsers.names import good_name
from scaleout.parsers.state import CallState, joined
from scaleout.parsers.stream import Alphabet, Markers

_MARKER = {"marker": True}


@frozen
class Pairs:
    """Four tags around keys and values; `call_end` closes the call.

    Mended, because the meaning is clear: a doubled opener or closer of a key, a missing opener of a value whose closer comes.
    """

    key_open: str = field(metadata=_MARKER)
    key_close: str = field(metadata=_MARKER)
    value_open: str = field(metadata=_MARKER)
    value_close: str = field(metadata=_MARKER)
    call_end: str = field(metadata=_MARKER)
    name: str = "pairs"
    first: str = "name"
    types: str = "unlike strings"
    tags: Markers = field(factory=Markers)
    values: Markers = field(factory=Markers)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Pairs:
        bound = evolve(self, **bound_markers(self, alphabet))
        tags = (bound.key_open, bound.key_close, bound.value_open, bound.value_close, bound.call_end)
        return evolve(
            bound,
            tags=Markers((*tags, *stops.words)),
            values=Markers((bound.value_close, bound.key_open, bound.call_end)),
        )

    def step(self, reader: Reader) -> bool:
        call = reader.state.call
        assert call is not None
        if call.step == "text":
            return self._text(reader, call)
        end = gather(reader, call, self.values if call.step == "held" else self.tags)
        if end and end != OVERRUN:
            self.steps[call.step](self, reader, call, end)
        return bool(end)

    def finish(self, reader: Reader) -> None:
        call = reader.state.call
        assert call is not None
        if not call.announced:
            reader.fail()
            return
        if call.step == "text":
            argue_text(reader, reader.text[reader.at :])
        elif call.step not in ("held", "key"):
            say_junk(reader, call)
        reader.at = len(reader.text)
        reader.end("unclosed", self.first)
        reader.leave()

    def _name(self, reader: Reader, call: CallState, end: str) -> None:
        """The name goes on to the first key or the end of the call; a shorter declared name is never guessed."""
        name = gathered(reader, call, end).strip()
        if end not in (self.key_open, self.call_end) or not good_name(name):
            reader.at -= len(end)
            reader.fail()
        elif begin_object(reader, name):
            self._expect_key(reader, call, end)

    def _between(self, reader: Reader, call: CallState, end: str) -> None:
        say_junk(reader, call)
        self._expect_key(reader, call, end)

    def _expect_key(self, reader: Reader, call: CallState, end: str) -> None:
        """What a tag means where a key may open or the call may close."""
        call.value, call.step = (), "between"
        if end == self.key_open:
            call.step = "key"
        elif end == self.call_end:
            reader.argue("}")
            reader.end("ok", self.first)
            reader.leave()
        elif end not in (self.key_close, self.value_open, self.value_close):
            reader.at -= len(end)
            reader.end("malformed", self.first)
            reader.leave()

    def _key(self, reader: Reader, call: CallState, end: str) -> None:
        key = joined(call.value).strip()
        if end == self.key_open and not key:
            return
        if end not in (self.key_close, self.value_open):
            self._between(reader, call, end)
            return
        call.key, call.value, call.step = key, (), "after key"
        if end == self.value_open:
            self._value(reader, call)

    def _after_key(self, reader: Reader, call: CallState, end: str) -> None:
        """The value's opener, or the value itself where its opener is missing."""
        if end == self.value_open:
            say_junk(reader, call)
            self._value(reader, call)
        elif end == self.value_close:
            text = call.value
            self._value(reader, call)
            if call.step == "text":
                argue_text(reader, joined(text))
                reader.argue('"')
            else:
                call.value = text
                end_held(reader, call)
            call.step = "between"
        elif end != self.key_close or joined(call.value).strip():
            call.key = ""
            self._between(reader, call, end)

    def _value(self, reader: Reader, call: CallState) -> None:
        kinds = reader.state.types.get(call.name, {}).get(call.key, "s")
        begin_value(reader, call, call.key, kinds)
        call.key = ""

    def _held(self, reader: Reader, call: CallState, end: str) -> None:
        end_held(reader, call)
        self._expect_key(reader, call, end)

    def _text(self, reader: Reader, call: CallState) -> bool:
        text, at = reader.text, reader.at
        found = self.values.whole.search(text, at)
        stop = found.start() if found else self.values.sure(text, at)
        argue_text(reader, text[at:stop])
        reader.at = found.end() if found else stop
        if found:
            reader.argue('"')
            self._expect_key(reader, call, found[0])
        return found is not None

    json_steps: ClassVar[frozenset[str]] = frozenset()
    announced_steps: ClassVar[frozenset[str]] = frozenset({"between", "key", "after key", "text", "held"})
    steps: ClassVar[Mapping[str, Callable[[Pairs, Reader, CallState, str], None]]] = {
        "name": _name,
        "between": _between,
        "key": _key,
        "after key": _after_key,
        "held": _held,
        "text": lambda *_: None,
    }
