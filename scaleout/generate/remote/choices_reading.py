"""Events that hold `choices`, as `/inference/v1/generate` and the OpenAI API send them, read as token deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, evolve, field

from scaleout.codec import Unfit
from scaleout.core import Json, PositionLogprobs, PromptInfo, PromptLogprobs, TokenDelta
from scaleout.generate.remote.dialect import read_ids
from scaleout.generate.remote.faults import Broken
from scaleout.result_wire import read_prompt_logprobs


@define
class ChoicesReading:
    """How much of the prompt was cached is said with every event, or at the end: then the last delta waits for the usage right behind it.

    `open`: choices without an end. `hidden_stops`: ends of text that some engines name as stop reason, and ours do not.
    `read_positions`: reads the logprobs of a choice.
    """

    open: int
    hidden_stops: frozenset[int]
    read_positions: Callable[[Json], list[PositionLogprobs] | None]
    over: bool = False
    _held: TokenDelta | None = None
    _cached: int | None = None
    _told: set[int] = field(factory=set)
    _kv: Json = None
    _ec: Json = None

    def take(self, event: Json) -> Sequence[TokenDelta]:
        if type(event) is not dict:
            raise Broken("the engine's stream holds something else than objects")
        usage = event.get("usage")
        if usage is not None:
            self._take_usage(usage)
        self._kv = event.get("kv_transfer_params") or self._kv
        self._ec = event.get("ec_transfer_params") or self._ec
        choices = event.get("choices")
        if not choices:
            return ()
        if type(choices) is not list:
            raise Broken("the engine's choices are no list")
        try:
            logprobs = event.get("prompt_logprobs") or choices[0].get("prompt_logprobs")
            told = None if logprobs is None else read_prompt_logprobs(logprobs)
            deltas = [self._take_choice(one, told) for one in choices]
            return [delta for delta in deltas if delta is not None]
        except (Unfit, KeyError, TypeError, AttributeError) as error:
            raise Broken(f"the engine's event cannot be read: {error}") from None

    def _take_choice(self, choice: Json, prompt_logprobs: PromptLogprobs | None) -> TokenDelta | None:
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            raise Broken("the engine returns text without token ids: it does not know return_token_ids")
        index, reason, stop = choice.get("index") or 0, choice.get("finish_reason"), choice.get("stop_reason")
        logprobs = choice.get("logprobs")
        prompt = None
        if index not in self._told and (prompt_logprobs is not None or self._cached is not None):
            self._told.add(index)
            prompt = PromptInfo(cached_tokens=self._cached, logprobs=prompt_logprobs)
        delta = TokenDelta(
            index,
            read_ids(ids or []),
            None if logprobs is None else self.read_positions(logprobs),
            reason,
            None if stop in self.hidden_stops else stop,
            prompt,
        )
        if reason is None:
            return delta
        self.open -= 1
        if self.open or (self._told and not (self._kv or self._ec)):
            return delta
        self._held = delta
        return None

    def _take_usage(self, usage: Json) -> None:
        details = usage.get("prompt_tokens_details") if type(usage) is dict else None
        if type(details) is dict and type(details.get("cached_tokens")) is int:
            self._cached = details["cached_tokens"]

    def finish(self) -> Sequence[TokenDelta]:
        held, self._held = self._held, None
        if held is None:
            return ()
        if self._cached is not None and not self._told:
            held = evolve(held, prompt=PromptInfo(cached_tokens=self._cached))
        return [evolve(held, kv_transfer_params=self._kv, ec_transfer_params=self._ec)]
