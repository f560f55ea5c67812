"""What an output format demands of an engine: calls in the family's own words, and where its thoughts begin and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleout import parsers
from scaleout.core import ChatRequest, Json
from scaleout.derender import Derenderer
from scaleout.generate.options import ThinkingMarkers
from scaleout.parsers import Format
from scaleout.parsers.constraint import constrain_calls
from scaleout.tokenizer import Tokenizer


def demand_calls(derenderer: Derenderer, request: ChatRequest, prompt_ids: Sequence[int]) -> Mapping[str, Json] | None:
    """`structured_outputs` for the calls that a request demands; None where it demands none. Raises `BadRequest`."""
    format = derenderer.format
    if format is None:
        return None

    def is_thinking() -> bool:
        state = derenderer.begin(request, prompt_ids, "").parser
        return state is not None and parsers.place(format, state) == "reasoning"

    return constrain_calls(format, request, is_thinking)


def thinking_markers(format: Format | None, tokenizer: Tokenizer) -> ThinkingMarkers | None:
    """The ids that open and close a thought; None where the format has none, or writes them with more than one token."""
    thought = None if format is None else format.thought
    if thought is None or not thought.open or not thought.close:
        return None
    start, end = (tokenizer.id_of(marker[0]) for marker in (thought.open, thought.close))
    added = tokenizer.added_tokens
    if start is None or end is None or start not in added or end not in added:
        return None
    return ThinkingMarkers([start], [end])
