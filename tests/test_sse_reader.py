"""Event streams as the HTML standard reads them, in any cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.routes.sse import frame
from scaleout.sse_reader import EventReader, EventTooLong, ServerEvent

LIMIT = 64

lines = st.one_of(
    st.sampled_from(
        ["", "", "data", "data:", "data: ", "data:  x", ": a comment", "event: context", "event", "id: 7", "retry: 1"]
    ),
    st.builds("data: {}".format, st.text("a:é🙂 \ufeff\0", max_size=12)),
    st.builds("{}: x".format, st.text("adtev ", max_size=6)),
    st.text("ab: é", max_size=8),
)
streams = st.builds(
    lambda mark, parts, rest: (mark + "".join(line + end for line, end in parts) + rest).encode(),
    st.sampled_from(["", "\ufeff", "\ufeff\ufeff"]),
    st.lists(st.tuples(lines, st.sampled_from(["\n", "\r", "\r\n"])), max_size=14),
    lines,
)


def by_the_standard(stream: bytes) -> list[ServerEvent]:
    """The standard's algorithm, word for word, over the whole stream."""
    text = stream.removeprefix(b"\xef\xbb\xbf").decode()
    events: list[ServerEvent] = []
    data, name = "", ""
    *whole, _ = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in whole:
        if line == "":
            if data != "":
                events.append(ServerEvent(data.removesuffix("\n").encode(), name or "message"))
            data, name = "", ""
            continue
        if line.startswith(":"):
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
    return events


def read(pieces: Iterable[bytes], limit: int = 1 << 20) -> list[ServerEvent]:
    reader = EventReader(limit)
    return [event for piece in pieces for event in reader.feed(piece)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(streams, st.lists(st.integers(0, 200), max_size=8))
def test_any_cut_gives_the_events_of_the_standard(stream: bytes, places: list[int]) -> None:
    expected = by_the_standard(stream)
    assert read([stream]) == expected
    assert read(cut(stream, places)) == expected
    assert read(stream[i : i + 1] for i in range(len(stream))) == expected


@given(
    st.lists(
        st.tuples(st.binary(max_size=30).map(lambda b: b.hex().encode()), st.none() | st.sampled_from(["error", "a b"]))
    )
)
def test_what_our_writer_frames_is_read_back(events: list[tuple[bytes, str | None]]) -> None:
    stream = b"".join(frame(payload, name) for payload, name in events)
    assert read([stream]) == [ServerEvent(payload, name or "message") for payload, name in events]


def until_too_long(pieces: Iterable[bytes], limit: int) -> tuple[list[ServerEvent], bool]:
    reader, events = EventReader(limit), []
    try:
        for piece in pieces:
            for event in reader.feed(piece):
                events.append(event)
    except EventTooLong:
        return events, True
    return events, False


@given(streams, st.lists(st.integers(0, 200), max_size=8), st.integers(1, 30))
def test_the_limit_is_met_at_the_same_event_in_any_cut(stream: bytes, places: list[int], limit: int) -> None:
    whole = until_too_long([stream], limit)
    assert until_too_long(cut(stream, places), limit) == whole
    assert until_too_long((stream[i : i + 1] for i in range(len(stream))), limit) == whole
    assert all(len(event.data) <= limit for event in whole[0])


@pytest.mark.parametrize("line", [b"data: %b\n", b"%b: x\n", b": %b\n", b"event: %b\n", b"%b"])
def test_no_line_and_no_event_grows_beyond_the_limit(line: bytes) -> None:
    assert until_too_long([b"data: 1\n\n", line % (b"x" * 2 * LIMIT)], LIMIT) == ([ServerEvent(b"1")], True)


def test_many_short_lines_of_one_event_count_together() -> None:
    assert until_too_long([b"data:\n"] * 10 * LIMIT, LIMIT) == ([], True)


def test_comments_may_come_for_ever_and_hold_nothing() -> None:
    reader = EventReader(LIMIT)
    for _ in range(1000):
        assert list(reader.feed(b": keep-alive\n")) == []
        assert not reader.holds_something
    assert list(reader.feed(b"data: 1\r\rdata: 2")) == [ServerEvent(b"1")]
    assert reader.holds_something
