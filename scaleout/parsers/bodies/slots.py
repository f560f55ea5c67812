"""Calls whose name and arguments stand in slots between markers (FORMATS 3.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from attrs import evolve, field, frozen

from scaleout.parsers.bodies.arguments import gather, gathered
from scaleout.parsers.body import bound_markers
from scaleout.parsers.json_scan import follow
from scaleout.parsers.machine import Reader
from scaleout.parsers.names import good_name
from scaleout.parsers.regions import layout_before
from scaleout.parsers.state import CallState, JsonState
from scaleout.parsers.stream import WHITESPACE, Alphabet, Markers, skip

_MARKER = {"marker": True}
_COUNTED = re.compile(r"(?:functions\.)?(.+):[0-9]+")
_FENCE = re.compile(r"```[A-Za-z]{0,16}\n")
_HALF_FENCE = re.compile(r"`{1,2}|```[A-Za-z]{0,16}")


@frozen
class Slots:
    """`name_end` ends the name; a brace does too where `brace` says so. Then the arguments, to their structural end or an end marker.

    `call`: the marker that must follow a section's opener. `type_end`: what ends the word before the name.
    `call_id`: what begins an id behind the name, which is left out. `counted`: the name is
    written `functions.NAME:7`, which is the call's id as well. `fence`: lines of three backticks around the arguments are layout.
    `closed`: calls have an end marker. `after`: the region of text behind the arguments.
    """

    name_end: tuple[str, ...] = field(metadata=_MARKER)
    call: str = field(default="", metadata=_MARKER)
    type_end: str = field(default="", metadata=_MARKER)
    call_id: str = field(default="", metadata=_MARKER)
    brace: bool = False
    counted: bool = False
    fence: bool = False
    closed: bool = True
    after: str = "content"
    name: str = "slots"
    first: Literal["section", "type", "name"] = "name"
    types: str = ""
    stops: Markers = field(factory=Markers)
    names: Markers = field(factory=Markers)
    type_ends: Markers = field(factory=Markers)
    text_ends: Markers = field(factory=Markers)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Slots:
        bound = evolve(self, **bound_markers(self, alphabet), stops=stops)
        return evolve(
            bound,
            names=Markers((*bound.name_end, *(["{"] if self.brace else []), *stops.words)),
            type_ends=Markers((bound.type_end, *stops.words)) if bound.type_end else Markers(),
            text_ends=Markers((*stops.words, *(["```"] if self.fence else []))),
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
        rest = reader.text[reader.at :]
        reader.at = len(reader.text)
        if call.step == "text" and not self.closed:
            reader.argue(rest.rstrip(WHITESPACE))
            reader.end("malformed", self.first)
        else:
            reader.argue(rest if call.step in ("json", "text") else "")
            reader.end("unclosed", self.first)
        reader.leave()

    def _section(self, reader: Reader, call: CallState) -> bool:
        """A section's opener: the first call must follow."""
        reader.at = skip(reader.text, reader.at)
        rest = reader.text[reader.at : reader.at + len(self.call)]
        if self.call.startswith(rest) and rest != self.call:
            return False
        if rest == self.call:
            reader.at += len(self.call)
            call.step = "type" if self.type_end else "name"
        else:
            reader.fail()
        return True

    def _type(self, reader: Reader, call: CallState) -> bool:
        """A word before the name that says nothing."""
        end = gather(reader, call, self.type_ends)
        if end == self.type_end:
            call.mark, call.step = -1, "name"
        elif end:
            reader.at -= len(end)
            reader.fail()
        return bool(end)

    def _name(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.names)
        if not end:
            return False
        text = gathered(reader, call, end)
        text = (text.split(self.call_id)[0] if self.call_id else text).strip()
        counted = _COUNTED.fullmatch(text)
        name = (counted[1] if counted else "") if self.counted else text
        by_brace = self.brace and end == "{"
        if not (by_brace or end in self.name_end) or not good_name(name):
            reader.at -= len(end)
            reader.fail()
            return True
        if by_brace:
            reader.at -= 1
        self._announce(reader, call, name, text if self.counted else None)
        return True

    def _announce(self, reader: Reader, call: CallState, name: str, id: str | None) -> None:
        if reader.announce(name, id and reader.spell(id)):
            call.step = "value"

    def _value(self, reader: Reader, call: CallState) -> bool:
        """The first character of the arguments tells what they are."""
        text = reader.text
        reader.at = at = skip(text, reader.at)
        if self.fence and (fence := _FENCE.match(text, at)):
            reader.at = fence.end()
            return True
        half = at == len(text) or (self.fence and _HALF_FENCE.fullmatch(text, at)) or self.stops.begun.match(text, at)
        if self.stops.whole.match(text, at):
            reader.argue("{}")
            self._end(reader, "ok")
        elif half and not (reader.final and at < len(text)):
            return False
        elif text[at] in '{["':
            call.json, call.step, call.sound = JsonState(), "json", text[at] == "{"
        else:
            call.step = "text"
        return True

    def _json(self, reader: Reader, call: CallState) -> bool:
        assert call.json is not None
        start = reader.at
        reader.at, outcome = follow(call.json, reader.text, start, self.stops)
        reader.argue(reader.text[start : reader.at])
        if outcome == "done":
            self._end(reader, "ok" if call.sound and call.json.valid else "malformed")
        elif outcome == "marker":
            self._end(reader, "malformed")
        return outcome != "more"

    def _text(self, reader: Reader, call: CallState) -> bool:
        """Arguments that are no JSON: their text up to an end marker."""
        text, at = reader.text, reader.at
        found = self.text_ends.whole.search(text, at)
        stop = found.start() if found else self.text_ends.sure(text, at)
        visible = stop - layout_before(text, at, stop)
        reader.argue(text[at:visible])
        reader.at = stop if found else visible
        if found:
            self._end(reader, "malformed")
        return found is not None

    def _end(self, reader: Reader, status: Literal["ok", "malformed"]) -> None:
        reader.end(status, self.first)
        reader.leave(self.after)

    json_steps: ClassVar[frozenset[str]] = frozenset({"json"})
    announced_steps: ClassVar[frozenset[str]] = frozenset({"value", "json", "text"})
    steps: ClassVar[Mapping[str, Callable[[Slots, Reader, CallState], bool]]] = {
        "section": _section,
        "type": _type,
        "name": _name,
        "value": _value,
        "json": _json,
        "text": _text,
    }
