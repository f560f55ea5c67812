"""Private marks that travel through a template and are taken out of its output: where blocks lie, and where a text ends.

Lone surrogates serve as marks: no JSON text, and so no supplied text, can hold one, and no encoder takes one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scaleout.errors import BadRequest

BLOCK_START, BLOCK_END, CUT = "\udcfd", "\udcfe", "\udcff"


def with_cut(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with a mark behind its last text. The space behind the mark tells whether the template trims."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": f"{content}{CUT} "}
    if isinstance(content, Sequence):
        parts = list(content)
        for i in reversed(range(len(parts))):
            if isinstance(parts[i], Mapping) and isinstance(parts[i].get("text"), str):
                parts[i] = {**parts[i], "text": f"{parts[i]['text']}{CUT} "}
                return {**message, "content": parts}
    raise BadRequest(
        "continue_final_message is set but the final message has no text to continue.", "continue_final_message"
    )


def block_ranges(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its block marks, and the character range of each block in it, in order."""
    pieces: list[str] = []
    ranges: list[tuple[int, int]] = []
    position = 0
    start: int | None = None
    for piece in re.split(f"([{BLOCK_START}{BLOCK_END}])", marked):
        if piece == BLOCK_START:
            start = position
        elif piece == BLOCK_END:
            if start is not None:
                ranges.append((start, position))
            start = None
        else:
            pieces.append(piece)
            position += len(piece)
    return "".join(pieces), ranges
