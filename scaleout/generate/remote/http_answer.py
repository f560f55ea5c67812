"""Answers of HTTP/1.1, read as their bytes arrive. Pure: no I/O, and the same body however the bytes are cut.

It reads what engines send to one who asks plainly: no compression, no upgrade. One reader reads one answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

MOST_HEAD = 1 << 16
"""Bytes of a status line and headers, and of the line before a chunk."""

HEX = frozenset(b"0123456789abcdefABCDEF")
BODILESS = (204, 304)


class BadAnswer(ValueError):
    """What arrives is no answer of HTTP/1.1, or ends within one."""


@define(eq=False)
class AnswerReader:
    """`status` is 0 until the head has been read. `headers`: by lower-case name, the last of equal names.

    `over`: the body is complete. `reusable`: another answer may follow on the same connection.
    """

    status: int = field(default=0, init=False)
    headers: Mapping[str, str] = field(factory=dict, init=False)
    over: bool = field(default=False, init=False)
    reusable: bool = field(default=False, init=False)
    _held: bytes = field(default=b"", init=False)
    """The start of a line whose end has not arrived."""
    _left: int | None = field(default=None, init=False)
    """Bytes of the body, or of its present chunk, that are still to come; None where nothing but the connection's end tells."""
    _chunked: bool = field(default=False, init=False)
    _in_chunk: bool = field(default=False, init=False)
    """The line break behind a chunk has not come yet."""
    _in_trailers: bool = field(default=False, init=False)

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` holds. Raises `BadAnswer`."""
        if not self.status:
            data = self._read_head(self._held + data)
        if not self.status or not data:
            return b""
        if self._chunked:
            return self._read_chunks(data)
        if self._left is None:
            return data
        body, more = data[: self._left], len(data) > self._left
        self._left -= len(body)
        self._end(self._left == 0, more)
        return body

    def end(self) -> None:
        """The connection has ended. Raises `BadAnswer` where the answer needed more of it."""
        if not self.status or (not self.over and (self._chunked or self._left is not None)):
            raise BadAnswer("the connection ended within the answer")
        self.over = True

    def _end(self, over: bool, more: bool) -> None:
        """`more`: bytes have come that nobody asked for."""
        self.over = self.over or over
        if more:
            self.reusable = False

    # ------------------------------------------------------------------------------------------ head

    def _read_head(self, data: bytes) -> bytes:
        """Returns what stands behind the head, b"" while that is not complete."""
        self._held = b""
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end or len(head) > MOST_HEAD:
                if len(data) > MOST_HEAD:
                    raise BadAnswer("the head of the answer is too long")
                self._held = data
                return b""
            status = self._take_head(head)
            if status >= 200:
                break
            data = rest  # such as 100: the answer itself is still to come
        self.status = status
        if status in BODILESS:
            self._left = 0
        self._end(self._left == 0 and not self._chunked, bool(rest) and self._left == 0 and not self._chunked)
        return rest

    def _take_head(self, head: bytes) -> int:
        first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
        version, _, told = first.partition(" ")
        status = told[:3]
        if (
            not version.startswith("HTTP/1.")
            or not (status.isascii() and status.isdigit())
            or told[3:4] not in ("", " ")
        ):
            raise BadAnswer("the answer is not HTTP/1.1")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadAnswer("a header of the answer cannot be read")
            headers[name.strip().lower()] = value.strip()
        self.headers = headers
        kept = headers.get("connection", "").lower()
        self._chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        length = headers.get("content-length")
        if length is not None and not self._chunked:
            if not (length.isascii() and length.isdigit()):
                raise BadAnswer("the length of the answer cannot be read")
            self._left = int(length)
        self.reusable = (
            (self._chunked or length is not None)
            and ("close" not in kept)
            and (version != "HTTP/1.0" or "keep-alive" in kept)
        )
        return int(status)

    # ------------------------------------------------------------------------------------------ body in chunks

    def _read_chunks(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        elif not (self._left or self._in_chunk or self._in_trailers):
            # What nearly every piece is: one whole chunk.
            start = data.find(b"\r\n") + 2
            line = data[: start - 2]
            if (
                2 < start < 12
                and HEX.issuperset(line)
                and len(data) == start + int(line, 16) + 2 > start + 2
                and data[-2:] == b"\r\n"
            ):
                return data[start:-2]
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.over:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._held = data[at:]
                if len(self._held) > MOST_HEAD:
                    raise BadAnswer("a line between two chunks is too long")
                return b"".join(pieces)
            self._take_line(data[at:end])
            at = end + 2
        self._end(False, at < size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        """A line that stands between the data of chunks."""
        if self._in_chunk:
            if line:
                raise BadAnswer("a chunk is longer than it says")
            self._in_chunk = False
        elif self._in_trailers:
            self.over = not line
        else:
            digits = line.partition(b";")[0].strip() if b";" in line or b" " in line else line
            if not 0 < len(digits) <= 16 or not HEX.issuperset(digits):
                raise BadAnswer("the size of a chunk cannot be read")
            self._left = int(digits, 16)
            self._in_chunk = self._left > 0
            self._in_trailers = not self._left
