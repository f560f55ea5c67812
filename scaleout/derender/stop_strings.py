"""Stop strings over visible content: matched, cut out, and held back while they may still become whole."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from scaleout.core import Content, Event


@frozen
class Matched:
    """What stopped the answer."""

    stop: str


def hold_stops(
    stops: Sequence[str], held: str, events: Sequence[Event], include: bool
) -> tuple[list[Event], str, Matched | None]:
    """Pass events on, less the text that could still be the start of a stop string.

    Only content is looked at: thoughts and arguments are no place to stop. Returns the events to show, the text still held, and
    the match that ends the answer; nothing after it is shown. The match that is complete first wins, so the answer does not
    depend on how the text was cut.
    """
    shown: list[Event] = []
    for event in events:
        if type(event) is not Content:
            if held:
                shown.append(Content(held))
                held = ""
            shown.append(event)
            continue
        text = held + event.text
        match = _first_complete(stops, text)
        if match is not None:
            start, stop = match
            visible = text[: start + len(stop) if include else start]
            if visible:
                shown.append(Content(visible))
            return shown, "", Matched(stop)
        keep = _longest_start(stops, text)
        held = text[len(text) - keep :]
        if len(text) > keep:
            shown.append(Content(text[: len(text) - keep]))
    return shown, held, None


def _first_complete(stops: Sequence[str], text: str) -> tuple[int, str] | None:
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return None
    _, start, stop = min(found)
    return start, stop


def _longest_start(stops: Sequence[str], text: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
