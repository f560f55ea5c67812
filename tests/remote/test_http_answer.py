"""Answers of HTTP/1.1: the same however their bytes are cut, and a fault rather than a guess where they make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.generate.remote.http_answer import MOST_HEAD, AnswerReader, BadAnswer

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
CUTS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def in_chunks(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x;note=1\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\nX-Trailer: 1\r\n\r\n"


def read(wire: bytes, cuts: list[int]) -> tuple[AnswerReader, bytes]:
    reader, body, at, turn = AnswerReader(), b"", 0, 0
    while at < len(wire):
        size = cuts[turn % len(cuts)]
        body += reader.feed(wire[at : at + size])
        at, turn = at + size, turn + 1
    return reader, body


@given(BODIES, CUTS)
def test_chunks_are_put_together_however_they_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Two: a: b\r\n\r\n"
    reader, body = read(head + in_chunks(pieces), cuts)
    assert (body, reader.over, reader.reusable) == (b"".join(pieces), True, True)
    one_by_one = AnswerReader()
    one_by_one.feed(head)
    for piece in pieces:
        assert one_by_one.feed(b"%X\r\n%b\r\n" % (len(piece), piece)) == piece
    assert not one_by_one.over
    assert one_by_one.feed(b"0\r\n\r\n") == b""
    assert one_by_one.over
    assert (reader.status, reader.headers["x-two"]) == (200, "a: b")
    reader.end()


@given(st.binary(max_size=60), CUTS)
def test_a_body_of_known_length(body: bytes, cuts: list[int]) -> None:
    wire = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    reader, found = read(wire, cuts)
    assert (reader.status, found, reader.over, reader.reusable) == (503, body, True, True)


@given(st.binary(max_size=60), CUTS)
def test_a_body_that_lasts_as_long_as_the_connection(body: bytes, cuts: list[int]) -> None:
    reader, found = read(b"HTTP/1.1 200 OK\r\n\r\n" + body, cuts)
    assert (found, reader.over) == (body, False)
    reader.end()
    assert reader.over
    assert not reader.reusable


@pytest.mark.parametrize(
    ("wire", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n?", False),
    ],
)
def test_whether_another_answer_may_follow(wire: bytes, reusable: bool) -> None:
    reader = AnswerReader()
    reader.feed(wire)
    assert (reader.over, reader.reusable) == (True, reusable)


@pytest.mark.parametrize(
    "wire",
    [
        b"220 mail.example ESMTP\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (MOST_HEAD + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MOST_HEAD,
    ],
)
def test_what_makes_no_sense_is_a_fault(wire: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerReader().feed(wire)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",
    ],
)
def test_an_end_within_an_answer_is_a_fault(wire: bytes) -> None:
    reader = AnswerReader()
    reader.feed(wire)
    with pytest.raises(BadAnswer):
        reader.end()
