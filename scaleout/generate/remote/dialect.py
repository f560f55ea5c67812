"""What a wire between here and an engine is made of: how a request is written, and how events are read. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from scaleout.core import GenerateRequest, Json, PositionLogprobs, TokenDelta, TokenLogprob
from scaleout.errors import NotSupported
from scaleout.generate.remote.faults import Broken
from scaleout.generate.remote.split_characters import SplitCharacters


@frozen
class Facts:
    """What an engine says about itself. None: it does not tell.

    `models`: the names that it serves, the first of which is asked for. `ours`: a server of this program, whose streams carry all
    that whole answers do. `probe_ids`: what it makes of the text by which tokenizers are compared.
    """

    models: Sequence[str] = ()
    roots: Sequence[str] = ()
    max_model_len: int | None = None
    vocab_size: int | None = None
    eos_token_ids: Sequence[int] | None = None
    special_ids: Sequence[int] | None = None
    fingerprint: str | None = None
    probe_ids: Sequence[int] | None = None
    ours: bool = False

    @property
    def model(self) -> str | None:
        return self.models[0] if self.models else None


class Reading(Protocol):
    """Reads the events of one answer, in order."""

    def take(self, event: Json) -> Sequence[TokenDelta]:
        """What an event says. Raises `Broken` for one that makes no sense."""

    def finish(self) -> Sequence[TokenDelta]:
        """What was held back for the end of the stream."""

    @property
    def over(self) -> bool:
        """Whether the answer is over though the engine goes on: the connection can be closed."""


@frozen
class Exchange:
    """One POST and how its answer is read."""

    path: str
    body: bytes
    reading: Reading


class EngineDialect(Protocol):
    """One wire."""

    @property
    def name(self) -> str: ...

    def write(self, request: GenerateRequest, facts: Facts, limits: Limits) -> Sequence[Exchange]:
        """The exchanges that answer `request`, side by side. Raises `NotSupported` for what this wire cannot say."""


@frozen
class Limits:
    """What the model of this server allows, for wires on which "up to the context" has to be a number.

    `split`: for wires that keep ids of split characters to themselves; None where there is no tokenizer.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    split: SplitCharacters | None = None

    def room(self, request: GenerateRequest, facts: Facts) -> int:
        """`max_tokens` as a number."""
        if request.sampling_params.max_tokens is not None:
            return request.sampling_params.max_tokens
        longest = min(self.max_model_len, facts.max_model_len or self.max_model_len)
        return max(longest - len(request.token_ids), 1)


def refuse(request: GenerateRequest, engine: str, *names: str) -> None:
    """Raises `NotSupported` where the request uses one of the sampling parameters `names`, or media: this wire has no words for them."""
    params = request.sampling_params
    for name in names:
        value = getattr(params, name)
        if value or (value == 0 and name == "thinking_token_budget"):
            raise NotSupported(f"{name} cannot be passed on to an engine that is driven by {engine}.", name)
    if request.features or request.content_parts:
        raise NotSupported(f"An engine that is driven by {engine} takes no media from here.", "features")
    if params.logprobs == -1 or params.prompt_logprobs == -1:
        raise NotSupported(f"{engine} has no logprobs of the whole vocabulary.", "logprobs")


def demand_of(request: GenerateRequest, engine: str, *kinds: str) -> tuple[str, Json] | None:
    """The kind of structured output that is asked for, and what it says. Raises `NotSupported` for one beside `kinds`."""
    demand = request.sampling_params.structured_outputs
    for kind in ("json", "json_object", "regex", "choice", "grammar", "structural_tag"):
        value = (demand or {}).get(kind)
        if value is not None and value is not False:
            if kind not in kinds:
                raise NotSupported(
                    f"structured output by {kind} cannot be passed on to an engine that is driven by {engine}.",
                    "structured_outputs",
                )
            return kind, value
    return None


def merge_top(sampled: TokenLogprob, best: Sequence[TokenLogprob], count: int) -> PositionLogprobs:
    """One position as our wire has it: the sampled id first, then the best by rank, `count` of them or one."""
    others = [one for one in best if one.token_id != sampled.token_id]
    return PositionLogprobs(sampled, [sampled, *others][: max(count, 1)])


def read_ids(value: Json) -> list[int]:
    """Token ids of an event: every one an integer, or the engine is broken."""
    if type(value) is list and (not value or set(map(type, value)) == {int}):
        return value
    raise Broken("the engine's stream holds no token ids where they belong")
