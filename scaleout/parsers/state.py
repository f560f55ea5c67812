"""What a parser must remember between two chunks, and its JSON form. The client carries it, so everything read back is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from attrs import define, field, fields

from scaleout.core import Json
from scaleout.errors import BadState, StaleState
from scaleout.parsers.stream import WHITESPACE, Alphabet, join_tokens, number_tokens

VERSION = 1

HOLD_LIMIT = 1 << 18
"""Characters of a call that are held before its announcement (FORMATS R16), and of whitespace whose neighbour is not known yet."""

NESTING_LIMIT = 512
"""Brackets inside one JSON value that are followed by kind; deeper ones are only counted, and the value counts as malformed."""

_HELD = 2 * HOLD_LIMIT  # a full hold, the longest marker and what one chunk can add before the limit is looked at
_COUNT = 1 << 40
_SHORT = 64

T = TypeVar("T")


def _key(key: str, limit: int = 0) -> dict[str, Any]:
    """How a field stands in the JSON form: its key, and the longest text or largest number that is accepted back."""
    return {"key": key, "limit": limit}


Held = tuple[str, ...]
"""Text that grows while it is held, in parts that shrink from left to right: adding n characters one by one costs n log n."""


def grown(held: Held, text: str) -> Held:
    """Held text with more text at its end."""
    while held and len(held[-1]) <= len(text):
        text = held[-1] + text
        held = held[:-1]
    return (*held, text) if text else held


def joined(held: Held) -> str:
    return "".join(held)


def length(held: Held) -> int:
    return sum(map(len, held))


@define
class JsonState:
    """Where a reader stands inside one JSON value; `json_scan` explains the codes."""

    stack: str = field(default="", metadata=_key("s", NESTING_LIMIT))
    expect: str = field(default="v", metadata=_key("e", 1))
    string: int = field(default=0, metadata=_key("q", 6))
    word: str = field(default="", metadata=_key("w", 8))
    deep: int = field(default=0, metadata=_key("d", _COUNT))
    valid: bool = field(default=True, metadata=_key("v"))


@define
class CallState:
    """The call region that is open. Offsets count from the region's opening marker; -1 is "not yet"."""

    step: str = field(default="", metadata=_key("s", 32))
    announced: bool = field(default=False, metadata=_key("a"))
    name: str = field(default="", metadata=_key("n", _HELD))
    id: str | None = field(default=None, metadata=_key("i", _HELD))
    mark: int = field(default=-1, metadata=_key("m", _HELD))
    start: int = field(default=-1, metadata=_key("g", _HELD))
    """Offset of the arguments that came before the name."""
    stop: int = field(default=-1, metadata=_key("z", _HELD))
    key: str = field(default="", metadata=_key("k", _HELD))
    value: Held = field(default=(), metadata=_key("v", _HELD))
    """Text that is gathered until it can be used: a name, a key, a value that is not a string."""
    kinds: str = field(default="", metadata=_key("t", 8))
    first: bool = field(default=True, metadata=_key("f"))
    """No argument has been written yet."""
    sound: bool = field(default=True, metadata=_key("o"))
    """Nothing seen so far makes the call malformed."""
    json: JsonState | None = field(default=None, metadata=_key("j"))


@define
class ParserState:
    """Everything between two chunks.

    `held`: text whose meaning the next characters decide. `raw`: the text of a call region that is not announced yet, from its opening
    marker. `lead`: the whitespace before that marker. `edge`: the last thing read was a marker, so whitespace is layout and the next
    text of a field that already has some starts a new line. `content` and `reasoning`: the field has text. `count`: calls announced.
    `types`: per tool, the JSON types of the parameters that are not plain strings.
    """

    region: str = field(default="content", metadata=_key("r", 32))
    calls: bool = field(default=True, metadata=_key("c"))
    edge: bool = field(default=False, metadata=_key("e"))
    content: bool = field(default=False, metadata=_key("t"))
    reasoning: bool = field(default=False, metadata=_key("g"))
    held: str = field(default="", metadata=_key("h", _HELD))
    lead: str = field(default="", metadata=_key("l", _HELD))
    raw: Held = field(default=(), metadata=_key("w", _HELD))
    count: int = field(default=0, metadata=_key("n", _COUNT))
    types: dict[str, dict[str, str]] = field(factory=dict)
    call: CallState | None = field(default=None, metadata=_key("b"))
    repaired: int = field(default=0, eq=False)
    """Headers that were read though they were slightly off, and that nobody has counted yet. Is counted before the state travels."""

    def copy(self) -> ParserState:
        """A state that can be changed while this one stays."""
        other = _copy(self)
        if other.call is not None:
            other.call = _copy(other.call)
            if other.call.json is not None:
                other.call.json = _copy(other.call.json)
        return other


_STATES = (JsonState, CallState, ParserState)
_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    cls: attrgetter(*(f.name for f in fields(cls))) for cls in _STATES
}


def _copy(state: T) -> T:
    return type(state)(*_VALUES[type(state)](state))


# ---------------------------------------------------------------------------------------------- to JSON


def dump_state(state: ParserState) -> dict[str, Json]:
    """A small JSON object that `load_state` reads: only what differs from a new state, under one-letter keys."""
    out = _dump(state)
    if state.types:
        out["y"] = state.types
    out["v"] = VERSION
    return out


_KEYS: dict[type, list[tuple[str, Any]]] = {
    cls: [(f.metadata.get("key", ""), f.default) for f in fields(cls)] for cls in _STATES
}


def _dump(state: Any) -> dict[str, Json]:
    cls = type(state)
    pairs = zip(_KEYS[cls], _VALUES[cls](state), strict=True)
    out = {key: value for (key, default), value in pairs if value is not default and value != default and key}
    for key, value in out.items():
        kind = type(value)
        if kind is str:
            if len(value) > _SHORT or not value.isascii():
                out[key] = _pack(value)
        elif kind is tuple:
            out[key] = _pack(joined(value))
        elif kind in _KEYS:
            out[key] = _dump(value)
    return out


_RUNS = re.compile(r"(.)\1*", re.DOTALL)


def _pack(text: str) -> Json:
    """Text as JSON. Long whitespace becomes runs `[[char, count]…]`; text with tokens a list `[text, token, text, token, text…]`."""
    if len(text) > _SHORT and not text.strip(WHITESPACE):
        return {"runs": [[m[1], len(m[0])] for m in _RUNS.finditer(text)]}
    return text if text.isascii() else number_tokens(text)


# ---------------------------------------------------------------------------------------------- from JSON


def read_state(value: Json, alphabet: Alphabet) -> ParserState:
    """The state that `dump_state` wrote. Raises BadState for anything that it cannot have written, StaleState for another version."""
    if type(value) is not dict:
        raise BadState("the parser state is no object")
    value = dict(value)
    version = value.pop("v", None)
    if version != VERSION or type(version) is not int:
        raise StaleState("the parser state has another version")
    types = _read_types(value.pop("y", {}))
    state = _load(ParserState, value, alphabet)
    state.types = types
    return state


_FIELDS: dict[type, dict[str, tuple[str, Any, int]]] = {
    cls: {f.metadata["key"]: (f.name, f.default, f.metadata["limit"]) for f in fields(cls) if f.metadata}
    for cls in _STATES
}


def _load(cls: type[T], value: Json, alphabet: Alphabet) -> T:
    if type(value) is not dict:
        raise BadState("a part of the parser state is no object")
    state, known = cls(), _FIELDS[cls]
    for key, part in value.items():
        if key not in known:
            raise BadState("the parser state has fields that no parser writes")
        name, default, limit = known[key]
        setattr(state, name, _read(name, part, default, limit, alphabet))
    return state


_PARTS = {"call": CallState, "json": JsonState}


def _read(name: str, value: Json, default: Any, limit: int, alphabet: Alphabet) -> Any:
    kind = type(default)
    if kind is bool:
        if type(value) is bool:
            return value
    elif kind is int:
        if type(value) is int and min(default, 0) <= value <= limit:
            return value
    elif name in _PARTS:
        return _load(_PARTS[name], value, alphabet)
    else:
        text = _unpack(value, limit, alphabet)
        return text if kind is not tuple else (text,) if text else ()
    raise BadState(f"the parser state's {name} is out of range")


def _unpack(value: Json, limit: int, alphabet: Alphabet) -> str:
    if type(value) is str:
        text = value
    elif type(value) is list:
        text = join_tokens(value)
    elif type(value) is dict and type(value.get("runs")) is list:
        text = _unroll(value["runs"], limit)
    else:
        raise BadState("a text of the parser state has no known form")
    if len(text) > limit or not (text.isascii() or alphabet.owns(text)):
        raise BadState("a text of the parser state is too long or holds characters that no model writes")
    return text


def _unroll(runs: list[Json], limit: int) -> str:
    text = ""
    for run in runs:
        match run:
            case [str(char), int(count)] if len(char) == 1 and char in WHITESPACE and 0 < count <= limit - len(text):
                text += char * count
            case _:
                raise BadState("a run of whitespace in the parser state makes no sense")
    return text


def _read_types(value: Json) -> dict[str, dict[str, str]]:
    if type(value) is dict and all(
        type(tool) is str
        and type(parameters) is dict
        and all(type(key) is str and type(kinds) is str and len(kinds) <= 8 for key, kinds in parameters.items())
        for tool, parameters in value.items()
    ):
        return value
    raise BadState("the parameter types in the parser state make no sense")
