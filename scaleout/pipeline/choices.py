"""One streamed answer, all choices of it: an engine's chunks in, the dialect's events out, wherever the engine is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, evolve, field

from scaleout.core import AnswerHead, GenerateChunk, Json, Usage
from scaleout.dialects import Dialect, Request
from scaleout.pipeline.derendering import StreamState, derender_chunk
from scaleout.pipeline.stages import Front


@define
class Choices:
    """The states of the choices that have begun, and what the engine counted.

    `open` makes the state of a choice when its first delta comes: the engine has then judged how many there may be. `expected` is how
    many there will be, None where nobody knows. `prompt_tokens` None: as many as the engine counts. `wants_usage`: whether the answer
    ends with its usage; None: where the engine sends one. Named events always do.
    """

    front: Front
    dialect: Dialect
    request: Request | None
    head: AnswerHead
    open: Callable[[int], StreamState]
    expected: int | None = None
    prompt_tokens: int | None = None
    wants_usage: bool | None = None
    _complete: Callable[[Sequence[Json]], Sequence[Json]] = field(init=False)
    _states: dict[int, StreamState] = field(factory=dict, init=False)
    _ended: int = field(default=0, init=False)
    _counted: Usage | None = field(default=None, init=False)
    _cached: dict[int, int] = field(factory=dict, init=False)
    """Cached tokens of each prompt, by its first choice, where the engine is so near that its deltas tell."""

    def __attrs_post_init__(self) -> None:
        self._complete = self.dialect.gather(self.request) or list

    @property
    def all_ended(self) -> bool:
        """Whether every choice has said its last word."""
        return 0 < (len(self._states) if self.expected is None else self.expected) == self._ended

    def ended(self, first: int, count: int) -> bool:
        """Whether `count` choices from `first` on have all said their last word."""
        states = [self._states.get(index) for index in range(first, first + count)]
        return all(state is not None and state.derender.closed for state in states)

    @property
    def watches_stops(self) -> bool:
        """Whether the answer can be over before the engine is."""
        return any(state.derender.context.stops for state in self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def state(self, index: int) -> StreamState:
        """The state of one choice, opened if need be."""
        if index not in self._states:
            self._states[index] = self.open(index)
        return self._states[index]

    def take(self, chunk: GenerateChunk, first: int = 0) -> Sequence[Json]:
        """The events of one chunk. `first`: what is added to its indexes, where several prompts are answered together."""
        if not chunk.choices:
            self._counted = chunk.usage
            return []
        prompt = chunk.choices[0].prompt
        if prompt is not None and prompt.cached_tokens is not None:
            self._cached.setdefault(first, prompt.cached_tokens)
        if len(chunk.choices) == 1 and not first:
            return self._take_one(chunk)
        events: list[Json] = []
        for given in chunk.choices:
            events += self._take_one(evolve(chunk, choices=[evolve(given, index=first + given.index)]))
        return events

    def _take_one(self, chunk: GenerateChunk) -> Sequence[Json]:
        state = self.state(chunk.choices[0].index)
        if state.derender.closed:
            return []
        before = state.carry
        delta, events = derender_chunk(self.front, self.dialect, state, chunk)
        self._ended += state.derender.closed
        if delta is None or not self.dialect.says_something(delta, before):
            return []
        return self._complete(events)

    def finish(self) -> Sequence[Json]:
        """The last events, where the answer ends with its usage."""
        wanted = self._counted is not None if self.wants_usage is None else self.wants_usage
        if not wanted and not self.dialect.NAMED_EVENTS:
            return []
        carry = self._states[0].carry if 0 in self._states else self.dialect.open_stream(self.request)
        _, events = self.dialect.chunk(self.head, carry, None, self._usage())
        return self._complete(events)

    def _usage(self) -> Usage:
        states, derenderer = self._states.values(), self.front.derenderer
        thoughts = [state.derender.reasoning for state in states if derenderer.tells_thoughts(state.derender)]
        counted = self._counted or Usage(len(self.head.prompt_token_ids or ()))
        # Where a stop string ends the answer before the engine's own count, nobody who derenders elsewhere could know what was cached.
        near = self._counted is not None and self._cached
        return Usage(
            counted.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            sum(state.derender.tokens for state in states),
            sum(self._cached.values()) if near else counted.cached_tokens,
            sum(thoughts) if thoughts else None,
        )
