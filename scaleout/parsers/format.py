"""A format is data: how a family writes thoughts and calls. Here is the vocabulary of that data; `table` makes regions of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, field, frozen

from scaleout.parsers.body import Body, Opening, Opens, bodies_of
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.stream import Alphabet, Markers
from scaleout.parsers.table import Table, build_table


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


@frozen
class Calls:
    """How calls are written.

    `open`: markers that open a call in content, and in thoughts that a call ends. `inner`: the same in content only. `first`: what
    opens a call as the first visible characters of the message. `close`: markers that are dropped when nothing is open; the `outer`
    ones end a failed region (FORMATS R6). `bodies`: further bodies, which others lead to.
    `strays`: regions of text between calls, with the markers that are dropped there and lead back to content. `fences`: the same, for
    markers that count only directly behind the call. `shapes`: how calls are demanded of an engine; the first one counts whose tokens
    the vocabulary has.
    """

    open: Opens = field(factory=dict)
    inner: Opens = field(factory=dict)
    first: Opens = field(factory=dict)
    close: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    bodies: tuple[Body, ...] = ()
    strays: Mapping[str, tuple[str, ...]] = field(factory=dict)
    fences: Mapping[str, tuple[str, ...]] = field(factory=dict)
    shapes: tuple[CallShape, ...] = ()

    @property
    def openings(self) -> list[Body | Opening]:
        return [*self.open.values(), *self.inner.values(), *self.first.values(), *self.bodies]


@frozen
class Format:
    """How one model family writes. `tokens`: spellings that count only as that token when the vocabulary has it (FORMATS R2).

    `required`: tokens without which the format cannot work; `otherwise`: the format for vocabularies without them. `end_tokens` never
    show. `turn`: what starts the header of the
    assistant's turn. `layout`: markers in content that never show. `greeting`: words that are dropped at the start of content.
    `erased`: markers that vanish as if they had not been there, each with the character that ends it, if it has one. `headers`: what
    opens a message's header, and `start` the region that reads the first one. `tool_parsers`, `reasoning_parsers`: the peer's names
    for the two halves. `signs`: strings that a chat template or vocabulary of the family holds, all of one group.
    """

    name: str
    thought: Thought | None = None
    calls: Calls | None = None
    tokens: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    otherwise: Format | None = None
    end_tokens: tuple[str, ...] = ()
    turn: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    greeting: tuple[str, ...] = ()
    erased: Mapping[str, str] = field(factory=dict)
    headers: Opens = field(factory=dict)
    start: str = ""
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()
    signs: tuple[tuple[str, ...], ...] = ()
    # What follows is made on first use: a server reads one format, and all of them would be a tenth of its start.

    @cached_property
    def alphabet(self) -> Alphabet:
        return Alphabet.of(self.tokens, self.end_tokens)

    @cached_property
    def tables(self) -> tuple[Table, Table]:
        """Regions by name: without calls, and with them."""
        return build_table(self, None), build_table(self, self.calls)

    @cached_property
    def openers(self) -> frozenset[str]:
        """What opens thoughts, as it looks in the stream."""
        return frozenset(map(self.alphabet.encode, self.thought.open if self.thought else ()))

    @cached_property
    def bounds(self) -> Markers:
        """What opens and closes thoughts, as it looks in the stream."""
        closers = self.thought.close if self.thought else ()
        return Markers((*self.openers, *map(self.alphabet.encode, closers)))

    @cached_property
    def types(self) -> str:
        """What its bodies need of the tools' schemas: see `Body.types`."""
        needs = {body.types for body in bodies_of(self.calls.openings)} if self.calls else set()
        return "all" if "all" in needs else max(needs, default="")


def bind(format: Format, added_tokens: Iterable[str]) -> Format:
    """The format for one vocabulary: markers that are no tokens there are recognised in the text.

    Raises ValueError when the vocabulary lacks a token that the format requires.
    """
    known = set(added_tokens)
    missing = [token for token in format.required if token not in known]
    if missing and format.otherwise:
        return bind(format.otherwise, known)
    if missing:
        raise ValueError(
            f"the output format {format.name!r} needs tokens that this vocabulary lacks: {', '.join(missing)}"
        )
    return evolve(format, tokens=tuple(token for token in format.tokens if token in known))


def compose(thoughts: Format, calls: Format) -> Format:
    """The thoughts of one format and the calls of another. Raises ValueError for a format whose halves belong together."""
    if thoughts is calls:
        return calls
    if thoughts.thought is None or calls.calls is None or thoughts.start or calls.start:
        raise ValueError(f"the thoughts of {thoughts.name!r} and the calls of {calls.name!r} do not go together")

    def both(name: str) -> Any:
        return tuple(dict.fromkeys((*getattr(thoughts, name), *getattr(calls, name))))

    return Format(
        name=f"{thoughts.name}+{calls.name}",
        thought=thoughts.thought,
        calls=calls.calls,
        erased={**thoughts.erased, **calls.erased},
        **{name: both(name) for name in ("tokens", "required", "end_tokens", "turn", "layout", "greeting")},
    )


def reshaped(format: Format, *shapes: CallShape) -> Calls:
    """The calls of a format, demanded in other words."""
    assert format.calls is not None
    return evolve(format.calls, shapes=shapes)


def only(format: Format, half: str) -> Format:
    """One half of a format: "thought" or "calls". A format with headers has no halves."""
    thought, calls = (format.thought, None) if half == "thought" else (None, format.calls)
    if format.start or (thought, calls) == (format.thought, format.calls):
        return format
    return evolve(format, name=f"{format.name}/{half}", thought=thought, calls=calls)
