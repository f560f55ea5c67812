"""What derender remembers of one choice between two deltas, and its JSON form: small, versioned, and not to be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, frozen

from scaleout.core import Json
from scaleout.errors import BadState
from scaleout.parsers import ParserState
from scaleout.tokenizer.decode_window import DecodeWindow

VERSION = 1
MAX_COUNT = 2**53


@frozen
class Context:
    """What of the request outlives its first chunk."""

    seed: str = ""
    parsed: bool = False
    skip_special: bool = True
    stops: Sequence[str] = ()
    include_stop: bool = False
    parallel_calls: bool = True
    show_reasoning: bool = True
    names_ids: bool = False
    """Tokens of log probabilities are written as `token_id:N`."""
    echo_alone: bool = False
    """Sampled ids are counted and not shown."""


@define
class DerenderState:
    """One choice in progress. `held` is content that may yet become a stop string; `offset` counts characters for logprobs.

    `tokens` are sampled ids so far, `reasoning` those of them that were thought.
    """

    context: Context
    window: DecodeWindow
    parser: ParserState | None = None
    held: str = ""
    calls: int = 0
    tokens: int = 0
    reasoning: int = 0
    offset: int = 0
    closed: bool = False
    echo: Sequence[int] = ()
    """Ids of a prompt that the answer still has to begin with."""


_FLAGS = ("parsed", "skip_special", "include_stop", "parallel_calls", "show_reasoning", "names_ids", "echo_alone")


def dump_context(context: Context) -> Json:
    flags = sum(1 << i for i, name in enumerate(_FLAGS) if getattr(context, name))
    wire: dict[str, Json] = {"seed": context.seed, "flags": flags}
    if context.stops:
        wire["stops"] = list(context.stops)
    return wire


def load_context(value: Json, max_stops: int, max_seed: int = 256) -> Context:
    """Raises `BadState` on anything that `dump_context` cannot have written."""
    if not isinstance(value, Mapping):
        raise BadState("stream_state: no context", "stream_state")
    seed, flags, stops = value.get("seed"), value.get("flags"), value.get("stops", [])
    if not isinstance(seed, str) or len(seed) > max_seed or type(flags) is not int or not 0 <= flags < 1 << len(_FLAGS):
        raise BadState("stream_state: bad context", "stream_state")
    if not isinstance(stops, list) or len(stops) > max_stops or not all(isinstance(s, str) and s for s in stops):
        raise BadState("stream_state: bad stop strings", "stream_state")
    return Context(seed=seed, stops=stops, **{name: bool(flags >> i & 1) for i, name in enumerate(_FLAGS)})


def read_count(value: Json, name: str) -> int:
    """A non-negative integer of the state."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise BadState(f"stream_state: bad {name}", "stream_state")
    return value
