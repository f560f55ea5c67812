"""The JSON follower against the standard library: where a value ends, and whether it is valid, in any cut."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hypothesis import given
from hypothesis import strategies as st

from scaleout.parsers.json_scan import follow
from scaleout.parsers.state import NESTING_LIMIT, JsonState
from scaleout.parsers.stream import Markers

STOPS = Markers(("</t>",))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
containers = st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4)
_BITS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    '"a"',
    "\\",
    "\\u00e9",
    "\\u0",
    "\\n",
    " ",
    "\n",
    "1",
    "01",
    "-",
    ".5",
    "e+",
    "true",
    "nul",
    "x",
    "é",
]
scraps = st.lists(st.sampled_from(_BITS), max_size=12).map("".join)


def read(text: str, places: list[int]) -> tuple[int, str, JsonState]:
    """Follow the value that begins the text, cut at the places. Returns where it stopped, why, and the state."""
    state, start = JsonState(), 0
    for place in [*sorted(set(places)), len(text)]:
        part = text[start:place]
        at, outcome = follow(state, part, 0, STOPS)
        start += at
        if outcome != "more":
            return start, outcome, state
    return start, "more", state


def refuse(word: str) -> NoReturn:
    raise ValueError(word)


def is_valid(text: str) -> bool:
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(
    value=containers,
    indent=st.sampled_from([None, 1]),
    ascii=st.booleans(),
    places=st.lists(st.integers(0, 60), max_size=6),
)
def test_real_values(value: Any, indent: int | None, ascii: bool, places: list[int]) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    at, outcome, state = read(text + "} tail", places)
    assert (at, outcome, state.valid) == (len(text), "done", True)


@given(first=st.sampled_from("{["), rest=scraps, places=st.lists(st.integers(0, 30), max_size=6))
def test_scraps(first: str, rest: str, places: list[int]) -> None:
    text = first + rest
    whole = read(text, [])
    assert read(text, places) == whole
    at, outcome, state = whole
    if outcome == "done":
        assert state.valid == is_valid(text[:at])


def test_markers_count_outside_strings_only() -> None:
    assert read('{"a": "</t>", "b"</t>', [])[:2] == (len('{"a": "</t>", "b"'), "marker")
    assert read('{"a": 1</', [])[:2] == (len('{"a": 1'), "more")


def test_what_is_too_deep_is_followed_but_not_valid() -> None:
    for depth, valid in ((NESTING_LIMIT, True), (NESTING_LIMIT + 1, False), (50_000, False)):
        text = "[" * depth + "]" * depth
        at, outcome, state = read(text + "]", [])
        assert (at, outcome, state.valid) == (len(text), "done", valid)
        assert len(state.stack) <= NESTING_LIMIT
