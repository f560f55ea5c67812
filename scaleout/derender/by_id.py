"""Which ids a stretch of decoded text came from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from scaleout.core import Piece


def count_ids(pieces: Sequence[Piece], counts: Sequence[int]) -> list[int]:
    """Per piece how many ids end in it. `counts`: per id how many characters were out after it."""
    ids, done, end = [], 0, 0
    for piece in pieces:
        end += len(piece.text)
        after = bisect_right(counts, end)
        ids.append(after - done)
        done = after
    return ids


def cut_by_id(pieces: Sequence[Piece], counts: Sequence[int]) -> list[tuple[list[Piece], int]]:
    """Per id the pieces that it brought, plain ones cut where it ends; an id within a character brings none."""
    steps: list[tuple[list[Piece], int]] = []
    rest = list(reversed(pieces))
    out = 0
    for count in counts:
        own: list[Piece] = []
        while out < count:
            piece = rest.pop()
            room = count - out
            if len(piece.text) > room:
                rest.append(Piece(piece.text[room:]))
                piece = Piece(piece.text[:room])
            own.append(piece)
            out += len(piece.text)
        steps.append((own, 1))
    return steps
