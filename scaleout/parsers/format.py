"""A format is data: how a family writes thoughts and calls. Here is the vocabulary of that data, and how it becomes a table of regions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from attrs import evolve, field, fields, frozen

from scaleout.parsers.json_scan import Stops
from scaleout.parsers.regions import Go, Text
from scaleout.parsers.stream import Alphabet


@frozen
class Thought:
    """How thoughts are written. `open` may come at any time, `first` only as the first words of the message.

    `ends_at_call`: a call marker inside a thought ends it, else it is thought text (FORMATS R10). `layout`: markers that may stand in
    a thought and never show. `label`: a word after the opener that is layout. `strays`: a closer outside a thought is dropped.
    """

    open: tuple[str, ...] = ("<think>",)
    close: tuple[str, ...] = ("</think>",)
    first: tuple[str, ...] = ()
    ends_at_call: bool = True
    layout: tuple[str, ...] = ()
    label: str = ""
    strays: bool = True


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

    def bind(self, alphabet: Alphabet, stops: Stops) -> Body:
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


@frozen
class Calls:
    """How calls are written.

    `open`: markers that open a call in content, and in thoughts that a call ends. `inner`: the same in content only. `first`: what
    opens a call as the first visible characters of the message. `close`: markers that are dropped when nothing is open; the `outer`
    ones end a failed region (FORMATS R6). `strays`: further regions by name, for text between calls.
    """

    open: Mapping[str, Body | Opening] = field(factory=dict)
    inner: Mapping[str, Body | Opening] = field(factory=dict)
    first: Mapping[str, Body | Opening] = field(factory=dict)
    close: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    strays: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Regions of text between calls: name, and the markers that end one."""


@frozen
class Format:
    """How one model family writes. `tokens`: spellings that count only as that token when the vocabulary has it (FORMATS R2).

    `required`: tokens without which the format cannot work. `end_tokens` never show. `turn`: what starts the header of the
    assistant's turn. `layout`: markers in content that never show. `tool_parsers`, `reasoning_parsers`: the peer's names for the two
    halves. `signs`: strings that a chat template or vocabulary of the family holds, all of one group.
    """

    name: str
    thought: Thought | None = None
    calls: Calls | None = None
    tokens: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    turn: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()
    signs: tuple[tuple[str, ...], ...] = ()
    alphabet: Alphabet = field(init=False, repr=False, eq=False)
    tables: tuple[Mapping[str, Text | Body], Mapping[str, Text | Body]] = field(init=False, repr=False, eq=False)
    """Regions by name: without calls, and with them."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "alphabet", Alphabet.of(self.tokens, self.end_tokens))
        object.__setattr__(self, "tables", (_table(self, None), _table(self, self.calls)))


def bind(format: Format, added_tokens: Iterable[str]) -> Format:
    """The format for one vocabulary: markers that are no tokens there are recognised in the text.

    Raises ValueError when the vocabulary lacks a token that the format requires.
    """
    known = set(added_tokens)
    missing = [token for token in format.required if token not in known]
    if missing:
        raise ValueError(
            f"the output format {format.name!r} needs tokens that this vocabulary lacks: {', '.join(missing)}"
        )
    return evolve(format, tokens=tuple(token for token in format.tokens if token in known))


def compose(thoughts: Format, calls: Format) -> Format:
    """The thoughts of one format and the calls of another."""
    if thoughts is calls:
        return calls
    if thoughts.thought is None or calls.calls is None:
        raise ValueError(f"{thoughts.name!r} and {calls.name!r} do not go together")

    def both(name: str) -> Any:
        return tuple(dict.fromkeys((*getattr(thoughts, name), *getattr(calls, name))))

    return Format(
        name=f"{thoughts.name}+{calls.name}",
        thought=thoughts.thought,
        calls=calls.calls,
        **{name: both(name) for name in ("tokens", "required", "end_tokens", "turn", "layout")},
    )


def only(format: Format, half: str) -> Format:
    """One half of a format: "thought" or "calls"."""
    thought, calls = (format.thought, None) if half == "thought" else (None, format.calls)
    if (thought, calls) == (format.thought, format.calls):
        return format
    return evolve(format, name=f"{format.name}/{half}", thought=thought, calls=calls)


# ---------------------------------------------------------------------------------------------- the table


def _table(format: Format, calls: Calls | None) -> dict[str, Text | Body]:
    """The regions of a format, each with the markers that leave it."""
    encode = format.alphabet.encode
    thought = format.thought or Thought(open=(), close=())
    drop, back, think = (
        Go("drop", "content"),
        Go("keep", "content"),
        Go("drop", "label" if thought.label else "thought"),
    )

    def each(markers: Iterable[str], go: Go) -> dict[str, Go]:
        return {encode(marker): go for marker in markers}

    def opening(markers: Mapping[str, Body | Opening]) -> dict[str, Go]:
        return {encode(marker): _open(opening) for marker, opening in markers.items()}

    opens = opening(calls.open) if calls else {}
    inner = opening(calls.inner) if calls else {}
    first = opening(calls.first) if calls else {}
    strays = each(calls.close, drop) if calls else {}

    content = strays | each(thought.close if thought.strays else (), drop) | each(format.layout, drop)
    content |= each(thought.open, think) | opens | inner
    inside = each(thought.layout, Go("drop", "thought")) | each(thought.open, think) | each(thought.close, drop)
    if thought.ends_at_call:
        inside = each(calls.close if calls else (), Go("drop", "thought")) | inside | opens
    regions: dict[str, Text | Body] = {
        "content": Text("content", "content", content),
        "thought": Text("thought", "reasoning", inside),
    }
    if first or thought.first:
        regions["start"] = Text("start", "content", first=first | each(thought.first, think), then="content")
    if thought.label:
        regions["label"] = Text("label", "reasoning", first={thought.label: Go("drop", "thought")}, then="thought")
    if calls:
        if calls.outer:
            failed = each(thought.open, think) | each(calls.outer, back) | opens | inner
            regions["failed"] = Text("failed", "content", failed)
        for name, ends in calls.strays.items():
            regions[name] = Text(name, "content", content | each(ends, drop))
        stops = Stops(tuple(strays | opens | inner))
        for body in _bodies(calls):
            regions[body.name] = body.bind(format.alphabet, stops)
    return regions


def _open(opening: Body | Opening) -> Go:
    if isinstance(opening, Opening):
        return Go("open", opening.body.name, opening.step or opening.body.first)
    return Go("open", opening.name, opening.first)


def _bodies(calls: Calls) -> list[Body]:
    """The bodies of a format. Two with one name must be one."""
    found: dict[str, Body] = {}
    for opening in (*calls.open.values(), *calls.inner.values(), *calls.first.values()):
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
