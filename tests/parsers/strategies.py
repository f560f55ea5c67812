"""Answers that no model would write: every marker of a format, half markers, JSON and Python in bits, in any order and any cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import fields
from hypothesis import strategies as st

from scaleout.core import Piece, Tool
from scaleout.parsers import Format

TOOLS = [
    Tool(
        "f",
        parameters={
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "n": {"type": ["number", "null"]},
                "b": {"type": "boolean"},
                "o": {"type": "object"},
                "a": {"type": "array"},
                "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
        },
    )
]

_BITS = (
    *("{", "}", "[", "]", "(", ")", ":", ",", '"', "'", "\\", "=", ";", "\n", " ", "  \n", "\t"),
    *(
        '{"name": "f", "arguments": {',
        '{"arguments": {"s": 1}, "name": "f"}',
        '"name"',
        '"f"',
        '"s": "x"',
        '"i": 12}}',
        "null",
        "tru",
        "e",
    ),
    *(
        "f(s='x', i=1)",
        "f(",
        "s=",
        "i=+07",
        "True",
        "-1.5e",
        "\\u00",
        "e9",
        "\\n",
        '{"f": {',
        "f",
        "s",
        "call:f{",
        "s:",
        "functions.f:0",
    ),
    *(
        "word",
        "words and words",
        "é",
        "😀",
        "助手：",
        "<",
        "</",
        "<t",
        "|",
        "｜",
        "```",
        "```json\n",
        "\x00",
        "\ufdd0",
        "\u3000",
    ),
)


def spellings(format: Format) -> list[str]:
    """All markers of a format as a model would spell them, found in its data."""
    found: set[str] = {*format.tokens, *format.end_tokens, *format.turn, *format.layout}
    if format.thought:
        thought = format.thought
        found |= {*thought.open, *thought.close, *thought.first, *thought.layout, thought.label}
    if format.calls:
        calls = format.calls
        for openings in (calls.open, calls.inner, calls.first):
            for marker, opening in openings.items():
                found.add(marker)
                found |= _marker_fields(getattr(opening, "body", opening))
        found |= {*calls.close, *(end for ends in calls.strays.values() for end in ends)}
    return sorted(found - {""})


def _marker_fields(body: Any) -> set[str]:
    found: set[str] = set()
    for f in fields(type(body)):
        value = getattr(body, f.name)
        if f.metadata.get("marker"):
            found |= {value} if isinstance(value, str) else set(value)
    return found


def answers(format: Format) -> st.SearchStrategy[list[Piece]]:
    """Lists of pieces. A marker comes as its token, spelled out, or cut short."""
    markers = spellings(format)
    tokens = [*format.tokens, *format.end_tokens]
    plain = st.one_of(
        st.sampled_from(_BITS),
        st.text(max_size=6),
        *(
            [st.sampled_from(markers), st.builds(lambda m, n: m[:n], st.sampled_from(markers), st.integers(1, 12))]
            if markers
            else []
        ),
    ).map(Piece)
    marked = st.sampled_from(tokens or ["<|x|>"]).map(lambda token: Piece(token, marker=True))
    special = st.sampled_from([*tokens, "<|image|>"]).map(lambda token: Piece(token, marker=True, special=True))
    whole = st.sampled_from(markers or ["x"]).map(lambda m: Piece(m, marker=m in tokens))
    return st.lists(st.one_of(plain, plain, whole, whole, marked, special), max_size=24).map(
        lambda ps: [p for p in ps if p.text]
    )


def cuts(pieces: Sequence[Piece]) -> st.SearchStrategy[list[list[Piece]]]:
    """The same answer in chunks: plain pieces cut anywhere, chunks of any number of pieces, empty ones too."""
    letters = [
        Piece(char) if not piece.marker else piece
        for piece in pieces
        for char in (piece.text if not piece.marker else "x")
    ]
    size = len(letters)
    return st.lists(st.integers(0, size), max_size=12).map(
        lambda places: [letters[a:b] for a, b in zip([0, *sorted(places)], [*sorted(places), size], strict=True)]
    )
