"""What the reader of a call region must offer, whatever way the call is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from attrs import fields, frozen

from scaleout.parsers.stream import Alphabet, Markers


class Body(Protocol):
    """The reader of one kind of call region. Every method may be called with any state that `load_state` lets through."""

    steps: ClassVar[Mapping[str, Any]]
    json_steps: ClassVar[frozenset[str]]
    """Steps that read a JSON value, and so have a JSON state."""
    announced_steps: ClassVar[frozenset[str]]
    """Steps of a call that is announced."""

    @property
    def name(self) -> str:
        """The name of the region."""

    @property
    def first(self) -> str:
        """The step that a marker starts unless it says otherwise."""

    @property
    def types(self) -> str:
        """What it needs of the tools' schemas: "" nothing, "unlike strings" the parameters that are more than a string, "all"."""

    def bind(self, alphabet: Alphabet, stops: Markers) -> Body:
        """The same body with its markers as they look in the stream. `stops` are the markers that end an open call."""

    def step(self, reader: Any) -> bool:
        """Read on. False: all that can be read has been read. True: look again, maybe in another region."""

    def finish(self, reader: Any) -> None:
        """The output ends inside this region."""


@frozen
class Opening:
    """A marker opens a call region: which body, and with which step it starts."""

    body: Body
    step: str = ""


Opens = Mapping[str, Body | Opening]


def bodies_of(openings: Iterable[Body | Opening]) -> list[Body]:
    """The bodies that openings lead to. Raises ValueError when two of them share a name."""
    found: dict[str, Body] = {}
    for opening in openings:
        body = opening.body if isinstance(opening, Opening) else opening
        if found.setdefault(body.name, body) != body:
            raise ValueError(f"two different bodies of one format are named {body.name!r}")
    return list(found.values())


def bound_markers(body: Any, alphabet: Alphabet) -> dict[str, Any]:
    """The fields of a body that hold markers (metadata `marker`), as they look in the stream."""
    changes = {}
    for f in fields(type(body)):
        if f.metadata.get("marker"):
            value = getattr(body, f.name)
            changes[f.name] = alphabet.encode(value) if isinstance(value, str) else tuple(map(alphabet.encode, value))
    return changes
