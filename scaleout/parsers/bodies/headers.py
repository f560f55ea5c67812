"""Messages with a header that says what their body is (FORMATS 5, harmony)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import evolve, field, frozen

from scaleout.parsers.bodies.arguments import gather, gathered
from scaleout.parsers.body import bound_markers
from scaleout.parsers.machine import Reader
from scaleout.parsers.names import good_name
from scaleout.parsers.state import CallState, ParserState
from scaleout.parsers.stream import WHITESPACE, Alphabet, Markers

KNOWN_CHANNELS = ("analysis", "commentary", "final")

_MARKER = {"marker": True}


@frozen
class Headers:
    """`message` ends a header; `start` and `ends` inside one mean that it was none. `slots`: the body that reads a call's arguments."""

    start: str = field(metadata=_MARKER)
    channel: str = field(metadata=_MARKER)
    message: str = field(metadata=_MARKER)
    ends: tuple[str, ...] = field(metadata=_MARKER)
    slots: str = "slots"
    name: str = "header"
    first: str = "header"
    types: str = ""
    bounds: Markers = field(factory=Markers)
    recipient: re.Pattern[str] = field(default=re.compile(r"\bto=([^\s\ud800-\udfff]+)"), eq=False)
    channels: re.Pattern[str] = field(default=re.compile(""), eq=False)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Headers:
        bound = evolve(self, **bound_markers(self, alphabet))
        channels = re.compile(re.escape(bound.channel) + r"\s*([^\s\ud800-\udfff]*)")
        return evolve(bound, bounds=Markers((bound.message, bound.start, *bound.ends)), channels=channels)

    def reopen(self, state: ParserState, tail: str) -> None:
        """The prompt's end, after the last start marker: a header that the answer goes on with, or a whole one."""
        header, message, body = tail.partition(self.message)
        if message:
            _, state.region = self._read(header)
            state.edge = not body.strip(WHITESPACE)
        else:
            state.region = self.name
            state.call = CallState(step=self.first, key=header)

    def step(self, reader: Reader) -> bool:
        call = reader.state.call
        assert call is not None
        return self.steps[call.step](self, reader, call)

    def finish(self, reader: Reader) -> None:
        reader.fail()

    def _channel(self, reader: Reader, call: CallState) -> bool:
        """A header that begins with its channel, where the start marker is missing."""
        call.key, call.step = self.channel, "header"
        reader.state.repaired += 1
        return True

    def _header(self, reader: Reader, call: CallState) -> bool:
        end = gather(reader, call, self.bounds)
        if not end:
            return False
        if end != self.message:
            reader.at -= len(end)
            reader.fail()
            return True
        header = call.key + gathered(reader, call, end)
        function, region = self._read(header)
        reader.state.repaired += self._is_off(header)
        if not function or not reader.state.calls:
            reader.leave(region)
        elif reader.announce(function):
            reader.state.region, call.step = self.slots, "value"
        return True

    def _is_off(self, header: str) -> bool:
        channels = self.channels.findall(header)
        return len(channels) > 1 or not all(channel in KNOWN_CHANNELS for channel in channels)

    def _read(self, header: str) -> tuple[str, str]:
        """The function that is called, if one is, and else the region of the body. The last channel counts."""
        found = self.recipient.search(header)
        function = found[1].removeprefix("functions.") if found else ""
        if found and "." in function and function == found[1]:
            function = ""
        channels = self.channels.findall(header)
        thinks = bool(channels) and channels[-1] == "analysis"
        return function if good_name(function) else "", "thought" if thinks else "content"

    json_steps: ClassVar[frozenset[str]] = frozenset()
    announced_steps: ClassVar[frozenset[str]] = frozenset()
    steps: ClassVar[Mapping[str, Callable[[Headers, Reader, CallState], bool]]] = {
        "header": _header,
        "channel": _channel,
    }
