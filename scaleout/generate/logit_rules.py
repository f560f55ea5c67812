"""What a request forbids or favours, as edits of one row of logits. A rule sees the row and the sequence, never the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from typing import TYPE_CHECKING

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from scaleout.generate.sequence import Sequence
from scaleout.generate.thinking import ThinkingTrace

if TYPE_CHECKING:
    from scaleout.generate.constraint import Matcher

Rule = Callable[[Tensor, Sequence], None]
"""Changes `row` [vocab], float32, in place."""

FORBIDDEN = float("-inf")
STRONGEST_BIAS = 100.0


def rules_for(sequence: Sequence) -> list[Rule]:
    """The rules of a sequence in the order they apply. Most requests have none."""
    params, needs = sequence.params, sequence.needs
    rules: list[Rule] = []
    if needs.constraint is not None:
        rules.append(Constrain.of(sequence))
    if params.allowed_token_ids is not None:
        rules.append(AllowOnly(torch.tensor(sorted(set(params.allowed_token_ids)))))
    if needs.bad_words:
        rules.append(Avoid(needs.bad_words))
    if params.min_tokens and sequence.stops:
        rules.append(NotYet(params.min_tokens, torch.tensor(sorted(sequence.stops))))
    if params.logit_bias:
        biases = [max(-STRONGEST_BIAS, min(STRONGEST_BIAS, bias)) for bias in params.logit_bias.values()]
        rules.append(Bias(torch.tensor(list(params.logit_bias)), torch.tensor(biases)))
    if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
        rules.append(Penalties(params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
    if needs.thinking is not None and params.thinking_token_budget is not None and params.thinking_token_budget >= 0:
        rules.append(ThinkNoLonger(ThinkingTrace(needs.thinking), params.thinking_token_budget))
    return rules


@define
class Constrain:
    """Structured output. Asleep while the model thinks; a model that may think is free to begin with that."""

    matcher: Matcher
    trace: ThinkingTrace | None
    _read: int

    @classmethod
    def of(cls, sequence: Sequence) -> Constrain:
        needs = sequence.needs
        assert needs.constraint is not None
        trace = None
        if needs.thinking is not None and sequence.request.reasoning_ended is not True:
            trace = ThinkingTrace(needs.thinking)
            trace.read(sequence.request.token_ids)
        return cls(needs.constraint.copy(), trace, sequence.prompt_len)

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        new = sequence.tokens[self._read :]
        self._read = len(sequence.tokens)
        may_think = sequence.generated == 0 and self.trace is not None and self.trace.could_begin
        if self.trace is not None:
            new = self._wake(self.trace, new)
        if self.trace is not None and self.trace.inside:
            return
        self.matcher.take(new)
        bits = np.unpackbits(np.frombuffer(self.matcher.mask(), dtype=np.uint8), count=len(row), bitorder="little")
        if self.trace is not None and may_think:
            bits[self.trace.markers.start[0]] = 1
        row.masked_fill_(torch.from_numpy(bits == 0).to(row.device), FORBIDDEN)

    def _wake(self, trace: ThinkingTrace, new: list[int]) -> list[int]:
        """The ids that the answer itself begins with: none of the thinking's, nor its markers."""
        for place, token in enumerate(new):
            was_inside = trace.inside
            trace.read([token])
            if was_inside and not trace.inside:
                self.trace = None
                return new[place + 1 :]
        return [] if trace.inside else new


@define
class Avoid:
    """Bad words: the last id of each is forbidden where the ones before it have just been said."""

    words: ReadOnly[ReadOnly[int]]

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        for word in self.words:
            said = len(word) - 1
            if said <= sequence.generated and sequence.tokens[len(sequence.tokens) - said :] == word[:-1]:
                row[word[-1]] = FORBIDDEN


@define
class ThinkNoLonger:
    """After `budget` ids of thinking the end marker is the only thing left to say."""

    trace: ThinkingTrace
    budget: int
    _read: int = 0
    _forced: int = 0

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        self.trace.read(sequence.tokens[self._read :])
        self._read = len(sequence.tokens)
        if not self.trace.inside or self.trace.count < self.budget:
            self._forced = 0
            return
        end = self.trace.markers.end
        row.fill_(FORBIDDEN)
        row[end[self._forced % len(end)]] = 0
        self._forced += 1


@define
class AllowOnly:
    ids: Tensor

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        ids = self.ids.to(row.device)
        kept = row[ids]
        row.fill_(FORBIDDEN)
        row[ids] = kept


@define
class Bias:
    ids: Tensor
    values: Tensor

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        row[self.ids.to(row.device)] += self.values.to(row)


@define
class NotYet:
    """The ids that would end the choice wait until `min_tokens` others are there."""

    min_tokens: int
    ids: Tensor

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        if sequence.generated < self.min_tokens:
            ids = self.ids.to(row.device)
            ends = row[ids]
            row[ids] = FORBIDDEN
            if row.max() == FORBIDDEN:  # a finished structure has nothing left to say but its end
                row[ids] = ends


@define
class Penalties:
    """Repetition looks at prompt and output and scales; frequency and presence look at the output and subtract."""

    repetition: float
    frequency: float
    presence: float
    _seen: set[int] = field(factory=set)
    _counts: Counter[int] = field(factory=Counter)
    _read: int = 0

    def __call__(self, row: Tensor, sequence: Sequence) -> None:
        new = sequence.tokens[self._read :]
        self._seen.update(new)
        self._counts.update(sequence.tokens[max(self._read, sequence.prompt_len) :])
        self._read = len(sequence.tokens)
        if self.repetition != 1:
            ids = torch.tensor(list(self._seen), device=row.device)
            values = row[ids]
            row[ids] = torch.where(values > 0, values / self.repetition, values * self.repetition)
        if self._counts and (self.frequency or self.presence):
            ids = torch.tensor(list(self._counts), device=row.device)
            counts = torch.tensor(list(self._counts.values()), device=row.device, dtype=row.dtype)
            row[ids] -= self.frequency * counts + self.presence
