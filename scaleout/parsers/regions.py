"""Regions of text, and what the markers in them do. Knows how to find a marker and which whitespace is layout; knows no calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from scaleout.parsers.state import HOLD_LIMIT
from scaleout.parsers.stream import WHITESPACE, any_of, beginning_of, longest_of

if TYPE_CHECKING:
    from scaleout.parsers.machine import Reader

Sink = Literal["content", "reasoning", ""]


@frozen
class Go:
    """What a marker does: `drop` itself, `erase` itself as if it had not been there, `keep` itself as text, or `open` a call.

    Then text goes on in the region `to`.
    """

    act: Literal["drop", "erase", "keep", "open"]
    to: str
    step: str = ""


@frozen
class Text:
    """A region whose text goes to one field. With `then` it lasts only until the first visible character.

    `first`: markers that count only as the first visible characters of the region; anything else there leads to the region `then`.
    """

    name: str
    sink: Sink
    markers: Mapping[str, Go] = field(factory=dict)
    first: Mapping[str, Go] = field(factory=dict)
    then: str = ""
    whole: re.Pattern[str] = field(init=False, repr=False, eq=False)
    begun: re.Pattern[str] = field(init=False, repr=False, eq=False)
    longest: int = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        markers = self.first if self.then else self.markers
        object.__setattr__(self, "whole", any_of(markers))
        object.__setattr__(self, "begun", beginning_of(markers))
        object.__setattr__(self, "longest", longest_of(markers))

    def step(self, reader: Reader) -> bool:
        """Read up to the next marker and do what it says. False: there is none, and what could not be one has been said."""
        if self.then:
            return self._start(reader)
        text, at = reader.text, reader.at
        found = self.whole.search(text, max(at, reader.searched - self.longest))
        if found is None:
            self._say_sure(reader)
            return False
        start = found.start()
        go = self.markers[found[0]]
        reader.at = found.end()
        if go.act == "keep":
            reader.say(self.sink, text[at : reader.at])
        elif go.act == "erase":
            reader.say(self.sink, text[at:start])
        else:
            end = start - _layout(text, at, start)
            reader.say(self.sink, text[at:end])
            if go.act == "open":
                reader.open(go, start, lead=text[end:start] if self.sink == "content" else "")
                return True
            reader.state.edge = True
        reader.state.region = go.to
        return True

    def _start(self, reader: Reader) -> bool:
        """The first visible character decides: one of `first`, or the region `then`."""
        text, at, state = reader.text, reader.at, reader.state
        start = at + len(text[at:]) - len(text[at:].lstrip(WHITESPACE))
        if start == len(text) and not reader.final:
            if state.edge:
                reader.at = start
            return False
        found = self.whole.match(text, start)
        if found is None and not reader.final and self.begun.match(text, start):
            return False
        if found is None:
            state.region, reader.searched = self.then, 0
            return True
        go = self.first[found[0]]
        reader.at = found.end()
        if go.act == "open":
            reader.open(go, start, lead="" if state.edge else text[at:start])
            return True
        state.edge = True
        state.region = go.to
        return True

    def _say_sure(self, reader: Reader) -> None:
        """Say what no further text can turn into layout or a marker; at the end of the output that is everything."""
        text, at = reader.text, reader.at
        end = len(text)
        if not reader.final:
            begun = self.begun.search(text, max(at, end - self.longest + 1))
            if begun:
                end = begun.start()
            end -= _layout(text, at, end)
            if reader.state.edge and end == at:
                end += len(text[at:]) - len(text[at:].lstrip(WHITESPACE))
        reader.say(self.sink, text[at:end])
        reader.at = end


def _layout(text: str, start: int, end: int) -> int:
    """How much whitespace stands before `end`. A run longer than the limit counts as text, up to its last piece."""
    part = text[start:end]
    length = len(part) - len(part.rstrip(WHITESPACE))
    return length - (length - 1) // HOLD_LIMIT * HOLD_LIMIT if length > HOLD_LIMIT else length
