"""Server-sent events, read as their bytes arrive. Pure: no I/O, and the same events however the bytes are cut."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field, frozen

MARK = b"\xef\xbb\xbf"
"""The byte order mark, which may begin a stream and means nothing."""

MESSAGE = "message"
"""The name of events that give themselves none."""


class EventTooLong(ValueError):
    """An event is longer than the reader may hold."""


@frozen
class ServerEvent:
    """One event. The lines of `data` are joined by newlines."""

    data: bytes
    name: str = MESSAGE


@define
class EventReader:
    """Holds at most one unfinished event, of `max_bytes` at most: its data so far, and the line that has begun.

    What the HTML standard says of event streams holds here: lines end with CR, LF or both, comments and unknown fields are passed over,
    an event without data is none, and what the stream's end leaves unfinished is lost.
    """

    max_bytes: int
    _line: bytearray = field(factory=bytearray, init=False)
    _data: bytearray = field(factory=bytearray, init=False)
    _has_data: bool = field(default=False, init=False)
    _name: bytes = field(default=b"", init=False)
    _after_cr: bool = field(default=False, init=False)
    _begun: bool = field(default=False, init=False)

    @property
    def holds_something(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._line) or self._has_data

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that `piece` completes, in order. Raises `EventTooLong` behind those before it."""
        if piece.startswith(b"data: ") and piece.find(b"\n") == len(piece) - 2 and self._takes_whole(piece):
            self._begun = True
            yield ServerEvent(piece[6:-2])
            return
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        for line in lines:
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            self._check(len(line))
            if not self._begun:
                self._begun = True
                line = line.removeprefix(MARK)
            if line:
                self._take_field(line)
            elif (event := self._end_event()) is not None:
                yield event
        self._line += rest
        self._check(len(self._line))

    def _takes_whole(self, piece: bytes) -> bool:
        """Whether `piece`, which is one line and an end of line, is an event by itself: what nearly every piece is."""
        fresh = not (self._line or self._has_data or self._name or self._after_cr)
        return fresh and piece.endswith(b"\n\n") and b"\r" not in piece and len(piece) <= self.max_bytes

    def _check(self, line: int) -> None:
        if len(self._data) + line > self.max_bytes:
            raise EventTooLong

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._has_data:
                self._data += b"\n"
            self._data += value
            self._has_data = True
        elif name == b"event":
            self._name = value

    def _end_event(self) -> ServerEvent | None:
        event = None
        if self._has_data:
            event = ServerEvent(bytes(self._data), self._name.decode(errors="replace") or MESSAGE)
            self._data.clear()
            self._has_data = False
        self._name = b""
        return event
