"""Which ids a stretch of decoded text came from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from scaleout.core import Piece
from scaleout.tokenizer.decode_window import Step


def count_ids(pieces: Sequence[Piece], counts: Sequence[int]) -> list[Step]:
    """Every piece with how many ids end in it. `counts`: per id how many characters were out after it."""
    steps: list[Step] = []
    done = end = 0
    for piece in pieces:
        end += len(piece.text)
        after = bisect_right(counts, end)
        steps.append(([piece], after - done))
        done = after
    if done < len(counts):
        steps.append(([], len(counts) - done))
    return steps


def cut_by_id(pieces: Sequence[Piece], counts: Sequence[int]) -> list[Step]:
    """Per id the pieces that it brought, plain ones cut where it ends; an id within a character brings none."""
    steps: list[Step] = []
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
