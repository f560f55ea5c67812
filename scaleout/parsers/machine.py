"""The machine that reads every format: text in, events out, chunk by chunk. Knows no tokens, no JSON and no family.

    begin   the state before the first piece, from the end of the prompt
    feed    a few pieces → the next state and what they made certain
    finish  the output has ended → the rest

A region of the format's table reads as far as it can, says what is certain and names the next region; that is all there is. The whole
answer is one feed and one finish, and any other cutting gives the same events but for where their texts are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from attrs import define, field

from scaleout.core import Content, Event, Json, Piece, Reasoning, Tool, ToolArguments, ToolEnd, ToolStart, ToolStatus
from scaleout.errors import BadState
from scaleout.parsers.format import Format
from scaleout.parsers.regions import Go, Sink, Text
from scaleout.parsers.schema import parameter_kinds
from scaleout.parsers.state import HOLD_LIMIT, CallState, ParserState, grown, joined, length, read_state
from scaleout.parsers.stream import WHITESPACE
from scaleout.parsers.table import Table


def begin(
    format: Format, prompt_tail: Sequence[Piece], *, tools: Sequence[Tool] = (), calls: bool = True
) -> ParserState:
    """The state before the first piece of the answer.

    `prompt_tail`: the end of the prompt, at least from the header of the assistant's turn. `calls` False: the request allows no calls,
    and text that looks like one is content.
    """
    state = ParserState(calls=calls and format.calls is not None)
    if state.calls and format.types:
        state.types = parameter_kinds(tools, strings=format.types == "all")
    table = format.tables[state.calls]
    if "start" in table:
        state.region = "start"
    tail = format.alphabet.read(_turn(format, prompt_tail))
    if format.start:
        table[format.start].reopen(state, tail)  # type: ignore[union-attr]
        return state
    if format.thought is not None:
        last = format.bounds.last(tail)
        if last is not None:
            state.region = "thought" if last[0] in format.openers else state.region
            state.edge = not tail[last.end() :].removeprefix(format.thought.label).strip(WHITESPACE)
    return state


def _turn(format: Format, prompt_tail: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces after the last turn boundary: a special token that is none of the format's, or what the format says starts a turn."""
    for n in range(len(prompt_tail) - 1, -1, -1):
        piece = prompt_tail[n]
        if piece.text in format.turn or (piece.special and piece.marker and piece.text not in format.alphabet.chars):
            return prompt_tail[n + 1 :]
    return prompt_tail


def place(format: Format, state: ParserState) -> Literal["content", "reasoning", "call"]:
    """Where text that came now would go."""
    sink = getattr(format.tables[state.calls].get(state.region), "sink", "call")
    return "reasoning" if sink == "reasoning" else "content" if sink == "content" else "call"


def feed(format: Format, state: ParserState, pieces: Sequence[Piece]) -> tuple[ParserState, list[Event]]:
    """Read some pieces. Returns the next state (the given one stays as it is) and the events that have become certain."""
    text = format.alphabet.read(pieces)
    if not text:
        return state, []
    region = format.tables[state.calls].get(state.region)
    if type(region) is Text and region.passes(state, text):
        return state, [(Content if region.sink == "content" else Reasoning)(format.alphabet.spell(text))]
    reader = Reader(format, state.copy(), text)
    reader.run()
    return reader.state, reader.events


def finish(format: Format, state: ParserState) -> list[Event]:
    """The output has ended: what was held is said, an open call ends."""
    reader = Reader(format, state.copy(), "", final=True)
    reader.run()
    return reader.events


def load_state(format: Format, value: Json) -> ParserState:
    """Raises BadState for anything that `dump_state` cannot have written, StaleState for another version."""
    state = read_state(value, format.alphabet)
    region = format.tables[state.calls].get(state.region)
    if region is None or (state.calls and format.calls is None):
        raise BadState("the parser state names a region that this format lacks")
    if isinstance(region, Text):
        if state.call is not None or state.raw or state.lead:
            raise BadState("the parser state has an open call outside a call region")
    elif (call := state.call) is None or call.step not in region.steps:
        raise BadState("the parser state names a step that this format lacks")
    elif (call.json is not None) != (call.step in region.json_steps) or call.announced != (
        call.step in region.announced_steps
    ):
        raise BadState("the parser state contradicts itself about the open call")
    elif call.announced and (state.raw or not state.count):
        raise BadState("the parser state holds text of a call that is announced")
    elif not call.announced and max(call.mark, call.start, call.stop) > length(state.raw):
        raise BadState("the parser state points behind its text")
    return state


@define
class Reader:
    """One feed at work: the text, the position in it, the state that changes and the events that come out."""

    format: Format
    state: ParserState
    text: str
    final: bool = False
    at: int = 0
    events: list[Event] = field(factory=list)
    raw_from: int = 0
    """Where the part of the open call's raw text begins that is not in `state.raw` yet."""
    searched: int = 0
    """Up to here the text was searched for markers in an earlier feed."""
    table: Table = field(init=False)

    def run(self) -> None:
        """Let regions read until all is read that can be."""
        state = self.state
        self.table = self.format.tables[state.calls]
        self.searched = len(state.held)
        self.text, state.held = state.held + self.text, ""
        while True:
            region = self.table[state.region]
            more = region.step(self)
            if state.call is not None and not state.call.announced and self.offset() > HOLD_LIMIT:
                self.fail()
            elif not more:
                if not self.final or isinstance(region, Text):
                    break
                region.finish(self)
        if state.call is not None and not state.call.announced:
            state.raw = grown(state.raw, self.text[self.raw_from : self.at])
        state.held = self.text[self.at :]
        if len(self.events) > 1:
            self.events = merged(self.events)

    # ---------------------------------------------------------------------------------- what regions of text do

    def say(self, sink: Sink, text: str) -> None:
        """Show text in a field. After a marker, whitespace is layout and text that resumes starts a new line (FORMATS R3, R4)."""
        state = self.state
        if state.edge:
            text = text.lstrip(WHITESPACE)
        if not text or not sink:
            return
        if state.edge and getattr(state, sink):
            text = "\n" + text
        state.edge = False
        setattr(state, sink, True)
        self.events.append((Content if sink == "content" else Reasoning)(self.spell(text)))

    def spell(self, text: str) -> str:
        """Stream text as the model spelled it."""
        return self.format.alphabet.spell(text)

    def open(self, go: Go, start: int, lead: str) -> None:
        """A call region begins at `start`, after the whitespace `lead`. Nothing is promised yet."""
        state = self.state
        state.edge = state.edge or getattr(self.table[state.region], "sink", "") == "reasoning"
        state.lead = "" if state.edge else lead
        state.region = go.to
        state.call = CallState(step=go.step)
        state.raw = ()
        self.raw_from = start

    # ---------------------------------------------------------------------------------- what bodies of calls do

    def offset(self) -> int:
        """The position, counted from the opening marker of the call region."""
        return length(self.state.raw) + self.at - self.raw_from

    def cut(self, start: int, stop: int) -> str:
        """A stretch of the call region's raw text, by offsets."""
        size = length(self.state.raw)
        before = joined(self.state.raw)[start:stop] if start < size else ""
        base = self.raw_from - size
        return before + self.text[max(start + base, self.raw_from) : max(stop + base, self.raw_from)]

    def announce(self, name: str, id: str | None = None) -> bool:
        """The call is certain. False: it came after more text than may be held, and the region has failed instead."""
        state, call = self.state, self.state.call
        assert call is not None
        if self.offset() > HOLD_LIMIT:
            self.fail()
            return False
        call.announced = True
        call.name, call.key, call.value = name, "", ()
        call.mark = call.start = call.stop = -1
        state.raw, state.lead = (), ""
        state.edge = True
        self.events.append(ToolStart(state.count, id, self.spell(name)))
        state.count += 1
        return True

    def argue(self, text: str) -> None:
        """Pass on a piece of the announced call's arguments."""
        if text:
            self.events.append(ToolArguments(self.state.count - 1, self.spell(text)))

    def end(self, status: ToolStatus, step: str) -> None:
        """The announced call ends; the body goes on with `step`, and a next call would begin here."""
        self.events.append(ToolEnd(self.state.count - 1, status))
        self.state.call = CallState(step=step)
        self.mark()

    def mark(self) -> None:
        """The raw text of the next call begins here."""
        self.state.raw = ()
        self.raw_from = self.at

    def leave(self, region: str = "content") -> None:
        """Out of the call region, into a region of text."""
        state = self.state
        state.region, state.call, state.raw, state.edge = region, None, (), True
        self.searched = 0

    def fail(self) -> None:
        """The region is no call: all of it so far is content, and it goes on as text (FORMATS R6)."""
        state = self.state
        if self.offset() > HOLD_LIMIT:
            self.at -= self.offset() - HOLD_LIMIT
        text = state.lead + joined(state.raw) + self.text[self.raw_from : self.at]
        seen = text.rstrip(WHITESPACE)
        self._give_back(text[len(seen) :])
        state.call, state.raw, state.lead = None, (), ""
        state.region = "failed" if "failed" in self.table else "content"
        self.say("content", seen)

    def _give_back(self, layout: str) -> None:
        """Whitespace at the end of a failed region may still turn out to stand next to a marker: read it again as text."""
        self.searched = 0
        if len(layout) <= self.at - self.raw_from:
            self.at -= len(layout)
        else:
            self.text, self.at, self.raw_from = layout + self.text[self.at :], 0, 0


def merged(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbouring texts of one field joined."""
    out: list[Event] = []
    for _, group in groupby(events, key=lambda event: (type(event), getattr(event, "index", 0))):
        run = list(group)
        text = "".join(event.text for event in run if isinstance(event, Content | Reasoning | ToolArguments))
        match run[0]:
            case Content():
                out.append(Content(text))
            case Reasoning():
                out.append(Reasoning(text))
            case ToolArguments(index):
                out.append(ToolArguments(index, text))
            case _:
                out += run
    return out
