"""Calls written as tags, one per parameter (FORMATS 3.5): `<function=NAME><parameter=KEY>VALUE</parameter></function>` and its like."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import evolve, field, frozen

from scaleout.parsers.bodies.arguments import (
    JSON_OR_TEXT,
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
from scaleout.parsers.state import CallState
from scaleout.parsers.stream import Alphabet, Markers, skip

_MARKER = {"marker": True}
_HEADER = re.compile(r"""(?:"([^"]*)"|'([^']*)')(.*)""", re.DOTALL)
_STRING = re.compile(r"""string\s*=\s*["']?(true|false)""")


@frozen
class Tagged:
    """Tags that open and close calls and parameters. `call` and `parameter` stop before the name; `>` ends it.

    `before`: layout that may stand between the opener of the region and the call tag. `trim`: one newline on either side of a value is
    layout. `attribute`: where the schema is silent about a parameter, an attribute `string="true|false"` tells.
    """

    call: str = field(metadata=_MARKER)
    call_end: str = field(metadata=_MARKER)
    parameter: str = field(metadata=_MARKER)
    parameter_end: str = field(metadata=_MARKER)
    before: tuple[str, ...] = field(default=(), metadata=_MARKER)
    trim: bool = False
    attribute: bool = False
    name: str = "tagged"
    first: str = "wrapper"
    names: Markers = field(factory=Markers)
    between: Markers = field(factory=Markers)
    keys: Markers = field(factory=Markers)
    values: Markers = field(factory=Markers)

    @property
    def types(self) -> str:
        """How much of the tools' schemas the body needs."""
        return "all" if self.attribute else "unlike strings"

    def bind(self, alphabet: Alphabet, stops: Markers) -> Tagged:
        bound = evolve(self, **bound_markers(self, alphabet))
        return evolve(
            bound,
            names=Markers((">", "<", *stops.words)),
            between=Markers((bound.parameter, bound.call_end, *stops.words)),
            keys=Markers((">", bound.parameter, bound.call_end, *stops.words)),
            values=Markers((bound.parameter_end, bound.parameter, bound.call_end)),
        )

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
        if call.step == "text":
            argue_text(reader, reader.text[reader.at :])
        elif call.step == "parameters":
            say_junk(reader, call)
        reader.at = len(reader.text)
        reader.end("unclosed", self.first)
        reader.leave()

    def _wrapper(self, reader: Reader, call: CallState) -> bool:
        """Layout, then the tag of the call."""
        text = reader.text
        reader.at = skip(text, reader.at)
        words = (*self.before, self.call)
        for word in words:
            if text.startswith(word, reader.at):
                reader.at += len(word)
                call.step = "name" if word == self.call else "wrapper"
                return True
        rest = text[reader.at : reader.at + max(map(len, words))]
        if not reader.final and any(word.startswith(rest) for word in words):
            return False
        reader.fail()
        return True

    def _name(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.names)
        if not end:
            return False
        name, _ = _header(gathered(reader, call, end))
        if end != ">" or not good_name(name):
            reader.at -= len(end)
            reader.fail()
        elif begin_object(reader, name):
            call.step = "parameters"
        return True

    def _parameters(self, reader: Reader, call: CallState) -> bool:
        """Between the parameters of an open call."""
        end = gather(reader, call, self.between)
        if not end:
            return False
        if end == OVERRUN:
            return True
        say_junk(reader, call)
        if end == self.parameter:
            call.step = "key"
        elif end == self.call_end:
            reader.argue("}")
            reader.end("ok", self.first)
            reader.leave()
        else:
            reader.at -= len(end)
            reader.end("malformed", self.first)
            reader.leave()
        return True

    def _key(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.keys)
        if not end:
            return False
        if end == OVERRUN:
            return True
        if end != ">":
            reader.at -= len(end)
            say_junk(reader, call, before=self.parameter)
            call.step = "parameters"
            return True
        key, rest = _header(gathered(reader, call, end), self.attribute)
        kinds = reader.state.types.get(call.name, {}).get(key, "")
        if not kinds and self.attribute:
            told = _STRING.search(rest)
            kinds = "s" if told and told[1] == "true" else JSON_OR_TEXT
        begin_value(reader, call, key, kinds or "s")
        if self.trim:
            call.key, call.step = call.step, "trim"
        return True

    def _trim(self, reader: Reader, call: CallState) -> bool:
        """One newline after the opening tag is layout."""
        if reader.at == len(reader.text):
            return False
        if reader.text[reader.at] == "\n":
            reader.at += 1
        call.step, call.key = "held" if call.kinds else "text", ""
        return True

    def _text(self, reader: Reader, call: CallState) -> bool:
        """A string value: passed on as it comes."""
        text, at = reader.text, reader.at
        found = self.values.whole.search(text, at)
        stop = found.start() if found else self.values.sure(text, at)
        if self.trim and text.endswith("\n", at, stop):
            stop -= 1
        argue_text(reader, text[at:stop])
        reader.at = found.end() if found else stop
        if not found:
            return False
        reader.argue('"')
        return self._value_ends(reader, call, found[0])

    def _held(self, reader: Reader, call: CallState) -> bool:
        """A value that may be something else than a string."""
        end = gather(reader, call, self.values)
        if not end:
            return False
        if end == OVERRUN:
            return True
        end_held(reader, call)
        return self._value_ends(reader, call, end)

    def _value_ends(self, reader: Reader, call: CallState, end: str) -> bool:
        call.step = "key" if end == self.parameter else "parameters"
        if end == self.call_end:
            reader.argue("}")
            reader.end("ok", self.first)
            reader.leave()
        return True

    json_steps: ClassVar[frozenset[str]] = frozenset()
    announced_steps: ClassVar[frozenset[str]] = frozenset({"parameters", "key", "trim", "text", "held"})
    steps: ClassVar[Mapping[str, Callable[[Tagged, Reader, CallState], bool]]] = {
        "wrapper": _wrapper,
        "name": _name,
        "parameters": _parameters,
        "key": _key,
        "trim": _trim,
        "text": _text,
        "held": _held,
    }


def _header(text: str, attributes: bool = False) -> tuple[str, str]:
    """A name or key without its quotes, and the attributes behind it, if there may be any."""
    text = text.strip()
    quoted = _HEADER.fullmatch(text) if text[:1] in ("'", '"') else None
    if quoted:
        return next(part for part in quoted.groups() if part is not None), quoted[3]
    name, _, rest = text.partition(" ") if attributes else (text, "", "")
    return name, rest
