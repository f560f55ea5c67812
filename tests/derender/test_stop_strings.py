"""Stop strings: however the text is cut, the same is shown, and never a character of what stopped it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import Content, Event, Reasoning, ToolArguments
from scaleout.derender.stop_strings import hold_stops

TEXT = st.text("abE ND\n", max_size=30)
STOPS = st.lists(st.text("abEND", min_size=1, max_size=4), min_size=1, max_size=3)


def stream(stops: list[str], events: list[Event], include: bool) -> tuple[list[Event], str | None]:
    """All events one by one, then the end."""
    shown: list[Event] = []
    held = ""
    for event in events:
        more, held, match = hold_stops(stops, held, [event], include)
        shown += more
        if match is not None:
            return shown, match.stop
    return [*shown, Content(held)] if held else shown, None


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def cut(text: str, places: list[int]) -> list[Event]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [Content(text[a:b]) for a, b in itertools.pairwise(edges)]


@given(TEXT, STOPS, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_any_cutting_gives_the_same_text_and_match(
    text: str, stops: list[str], places: list[int], include: bool
) -> None:
    whole, match = stream(stops, [Content(text)], include)
    pieces, same_match = stream(stops, cut(text, places), include)
    by_char, by_char_match = stream(stops, [Content(c) for c in text], include)
    assert text_of(whole) == text_of(pieces) == text_of(by_char)
    assert match == same_match == by_char_match


@given(TEXT, STOPS)
def test_the_match_that_is_complete_first_wins(text: str, stops: list[str]) -> None:
    shown, match = stream(stops, [Content(text)], include=False)
    ends = [end for end in range(1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert (text_of(shown), match) == (text, None)
    else:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        assert (text_of(shown), match) == (text[: ends[0] - len(longest)], longest)


@given(TEXT, STOPS, st.lists(st.integers(0, 40), max_size=6))
def test_no_empty_content_and_nothing_is_taken_back(text: str, stops: list[str], places: list[int]) -> None:
    shown, _ = stream(stops, cut(text, places), include=False)
    assert all(event.text for event in shown if isinstance(event, Content))
    final = text_of(stream(stops, [Content(text)], include=False)[0])
    so_far = ""
    for event in shown:
        so_far += text_of([event])
        assert final.startswith(so_far)


@pytest.mark.parametrize("between", [Reasoning("END"), ToolArguments(0, "END")])
def test_only_content_is_a_place_to_stop(between: Event) -> None:
    shown, match = stream(["END"], [Content("a E"), between, Content("ND b")], include=False)
    assert match is None
    assert shown == [Content("a "), Content("E"), between, Content("ND b")]


@pytest.mark.parametrize(
    ("stops", "chunks", "include", "expected", "match"),
    [
        (["ue sky"], ["a bl", "ue s", "and"], False, "a blue sand", None),
        (["ue sky"], ["a bl", "ue s", "ky wide"], False, "a bl", "ue sky"),
        (["END"], ["Answer E", "ND tail"], True, "Answer END", "END"),
    ],
)
def test_reported_streams(stops: list[str], chunks: list[str], include: bool, expected: str, match: str | None) -> None:
    shown, found = stream(stops, [Content(chunk) for chunk in chunks], include)
    assert (text_of(shown), found) == (expected, match)
