"""Regions of text, and what the markers in them do. Knows how to find a marker and which whitespace is layout; knows no calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from scaleout.parsers.state import HOLD_LIMIT, ParserState
from scaleout.parsers.stream import WHITESPACE, Markers, skip

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
    once: bool = False
    """`first` counts only while there is no content yet."""
    find: Markers = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "find", Markers(self.first if self.then else self.markers))

    def passes(self, state: ParserState, text: str) -> bool:
        """Whether `text` is said as it is, and leaves the state as it is: no marker can begin in it, and no layout ends it."""
        if self.then or not self.sink or state.held or state.edge or not getattr(state, self.sink):
            return False
        return text[-1] not in WHITESPACE and self.find.starts.search(text) is None

    def step(self, reader: Reader) -> bool:
        """Read up to the next marker and do what it says. False: there is none, and what could not be one has been said."""
        if self.then:
            return self._start(reader)
        text, at = reader.text, reader.at
        found = self.find.whole.search(text, max(at, reader.searched - self.find.longest))
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
            end = start - layout_before(text, at, start)
            reader.say(self.sink, text[at:end])
            if go.act == "open":
                reader.open(go, start, lead=text[end:start] if self.sink == "content" else "")
                return True
            reader.state.edge = True
        reader.state.region = go.to
        return True

    def _start(self, reader: Reader) -> bool:
        """The first visible character of the field decides: one of `first`, or the region `then`."""
        text, at, state = reader.text, reader.at, reader.state
        start = skip(text, at)
        if state.edge:
            reader.at = at = start
        late = (self.once and state.content) or start - at > HOLD_LIMIT
        undecided = start == len(text) or self.find.begun.match(text, start) is not None
        if undecided and not late and not reader.final:
            return False
        found = None if late else self.find.whole.match(text, start)
        if found is None:
            state.region, reader.searched = self.then, 0
            return True
        go = self.first[found[0]]
        reader.at = found.end()
        if go.act == "open":
            reader.open(go, start, lead=text[at:start])
            return True
        state.edge = True
        state.region = go.to
        return True

    def _say_sure(self, reader: Reader) -> None:
        """Say what no further text can turn into layout or a marker; at the end of the output that is everything."""
        text, at = reader.text, reader.at
        end = len(text)
        if not reader.final:
            end = self.find.sure(text, at)
            end -= layout_before(text, at, end)
            if reader.state.edge and end == at:
                end = skip(text, at)
        reader.say(self.sink, text[at:end])
        reader.at = end


def layout_before(text: str, start: int, end: int) -> int:
    """How much whitespace stands before `end`. A run longer than the limit counts as text, up to its last piece."""
    part = text[start:end]
    length = len(part) - len(part.rstrip(WHITESPACE))
    return length - (length - 1) // HOLD_LIMIT * HOLD_LIMIT if length > HOLD_LIMIT else length
