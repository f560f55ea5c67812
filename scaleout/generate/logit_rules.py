"""What a request forbids or favours, as edits of one row of logits. A rule sees the row and the sequence, never the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from attrs import define, field
from torch import Tensor

from scaleout.generate.sequence import Sequence

Rule = Callable[[Tensor, Sequence], None]
"""Changes `row` [vocab], float32, in place."""

FORBIDDEN = float("-inf")
STRONGEST_BIAS = 100.0


def rules_for(sequence: Sequence) -> list[Rule]:
    """The rules of a sequence in the order they apply. Most requests have none."""
    params = sequence.params
    rules: list[Rule] = []
    if params.allowed_token_ids is not None:
        rules.append(AllowOnly(torch.tensor(sorted(set(params.allowed_token_ids)))))
    if params.logit_bias:
        biases = [max(-STRONGEST_BIAS, min(STRONGEST_BIAS, bias)) for bias in params.logit_bias.values()]
        rules.append(Bias(torch.tensor(list(params.logit_bias)), torch.tensor(biases)))
    if params.min_tokens and sequence.stops:
        rules.append(NotYet(params.min_tokens, torch.tensor(sorted(sequence.stops))))
    if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
        rules.append(Penalties(params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
    return rules


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
            row[self.ids.to(row.device)] = FORBIDDEN


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
