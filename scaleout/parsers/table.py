"""From the data of a format to its table: the regions of the output, and for each the markers that leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scaleout.parsers.body import Body, Opening, Opens, bodies_of
from scaleout.parsers.regions import Go, Text
from scaleout.parsers.stream import Markers

if TYPE_CHECKING:
    from scaleout.parsers.format import Calls, Format

Table = Mapping[str, Text | Body]


def build_table(format: Format, calls: Calls | None) -> Table:
    """The regions by name. Content and thought are there always; the others where the format has a use for them:

    start    until the first visible character of content
    label    behind a thought's opener, until the first visible character
    failed   the rest of a call region that turned out to be none
    a body   an open call; its text is no field's until the body says so
    """
    encode = format.alphabet.encode
    thought = format.thought
    at_call = thought is None or thought.ends_at_call
    starts = bool(format.greeting or (calls and calls.first))

    def each(markers: Iterable[str], go: Go) -> dict[str, Go]:
        return {encode(marker): go for marker in markers}

    def opening(markers: Opens) -> dict[str, Go]:
        return {encode(marker): _open(opening) for marker, opening in markers.items()}

    to_content, to_start = Go("drop", "content"), Go("drop", "start" if starts else "content")
    to_thought = Go("drop", "label" if thought and thought.label else "thought")
    opens = opening(format.headers) | opening(calls.open if calls else {})
    inner = opening(calls.inner if calls else {})
    closers = calls.close if calls else ()
    thinks = each(thought.open, to_thought) if thought else {}

    content = each(closers, to_content) | each(format.layout, to_start) | thinks | opens | inner
    inside: dict[str, Go] = {}
    if thought:
        content = each(thought.close if thought.strays else (), to_content) | content
        inside = each(closers if at_call else (), Go("drop", "thought")) | each(thought.layout, Go("drop", "thought"))
        inside |= thinks | each(thought.close, to_start) | (opens if at_call else {})

    def erased(region: str) -> dict[str, Go]:
        return {
            encode(marker): Go("erase", f"{region} tag" if end else region) for marker, end in format.erased.items()
        }

    table: dict[str, Text | Body] = {
        "content": Text("content", "content", content | erased("content")),
        "thought": Text("thought", "reasoning", inside | erased("thought")),
    }
    for end in filter(None, format.erased.values()):
        table |= {f"{name} tag": Text(f"{name} tag", "", {end: Go("erase", name)}) for name in ("content", "thought")}
    if starts or (thought and thought.first):
        firsts = (
            opening(calls.first if calls else {})
            | each(thought.first if thought else (), to_thought)
            | each(format.greeting, to_content)
        )
        table["start"] = Text("start", "content", first=firsts, then="content", once=True)
    if thought and thought.label:
        table["label"] = Text("label", "reasoning", first=each([thought.label], Go("drop", "thought")), then="thought")
    if calls:
        if calls.outer:
            table["failed"] = Text(
                "failed", "content", thinks | each(calls.outer, Go("keep", "content")) | opens | inner
            )
        for name, ends in calls.strays.items():
            table[name] = Text(name, "content", content | each(ends, to_content))
        for name, ends in calls.fences.items():
            table[name] = Text(name, "content", first=each(ends, to_content), then="content")
    stops = Markers((*each(closers, to_content), *opens, *inner))
    for body in bodies_of([*format.headers.values(), *(calls.openings if calls else [])]):
        table[body.name] = body.bind(format.alphabet, stops)
    return table


def _open(opening: Body | Opening) -> Go:
    if isinstance(opening, Opening):
        return Go("open", opening.body.name, opening.step or opening.body.first)
    return Go("open", opening.name, opening.first)
