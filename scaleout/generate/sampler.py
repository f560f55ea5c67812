"""Logits → next ids. Every row is decided by its own request alone: its seed, its place in the answer, its parameters."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly

import torch
from torch import Tensor

from scaleout.core import PositionLogprobs
from scaleout.errors import BadRequest, RequestError
from scaleout.generate.logit_rules import FORBIDDEN, rules_for
from scaleout.generate.logprobs import describe_chosen, describe_sampled
from scaleout.generate.sequence import Sampled, Sequence

MASK64 = (1 << 64) - 1

SHORTLIST = 1024
"""Ids sorted at first when only `top_p` cuts: the mass rarely reaches further, and sorting a whole vocabulary is slow."""


class Sampler:
    """Order: rules (allowed ids, bias, minimum length, penalties), temperature, min_p, top_k, top_p, draw.

    Log probabilities are those of the model, before all of that.
    """

    def sample(self, logits: Tensor, sequences: ReadOnly[Sequence]) -> list[Sampled]:
        """`logits` [rows, vocab], one row per sequence."""
        logits = logits.float()
        wanting = [row for row, sequence in enumerate(sequences) if sequence.params_ask_logprobs]
        raw = torch.log_softmax(logits[wanting], dim=-1) if wanting else None
        failures = {row: apply_rules(logits[row], sequence) for row, sequence in enumerate(sequences)}
        ids = choose(logits, sequences)
        shown = {} if raw is None else show(raw, wanting, ids, sequences)
        return [Sampled(token_id, shown.get(row), failures[row]) for row, token_id in enumerate(ids)]


def apply_rules(row: Tensor, sequence: Sequence) -> RequestError | None:
    """Edits a row as its request demands. What one request demands in vain is told to it alone."""
    if sequence.rules is None:
        sequence.rules = rules_for(sequence)
    try:
        for rule in sequence.rules:
            rule(row, sequence)
    except RequestError as error:
        return error
    if sequence.rules and row.max() == FORBIDDEN:
        return BadRequest("What the request allows and what it demands leave no token to go on with.")
    return None


def choose(logits: Tensor, sequences: ReadOnly[Sequence]) -> list[int]:
    """The next id of each row, in one copy from the device."""
    chosen = logits.argmax(dim=-1)
    random = [row for row, sequence in enumerate(sequences) if sequence.temperature > 0]
    cut = [row for row in random if needs_sorting(sequences[row])]
    plain = [row for row in random if not needs_sorting(sequences[row])]
    for rows, draw in ((plain, draw_plain), (cut, draw_sorted)):
        if rows:
            chosen[rows] = draw(logits[rows], [sequences[row] for row in rows])
    ids: list[int] = chosen.tolist()
    return ids


def needs_sorting(sequence: Sequence) -> bool:
    return sequence.params.top_k > 0 or sequence.params.top_p < 1


def masses(logits: Tensor, sequences: ReadOnly[Sequence]) -> Tensor:
    """Unnormalised probabilities, float64 [rows, vocab]: temperature and min_p applied, 1 for the best id."""
    temperatures = column([sequence.temperature for sequence in sequences], logits)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures
    mass = torch.exp(scaled.double())
    floors = [sequence.params.min_p for sequence in sequences]
    if any(floors):
        mass = torch.where(mass < column(floors, mass), 0.0, mass)
    return mass


def draw_plain(logits: Tensor, sequences: ReadOnly[Sequence]) -> Tensor:
    """Inverts the cumulative distribution in vocabulary order."""
    running = masses(logits, sequences).cumsum(dim=-1)
    return invert(running, running[:, -1:], sequences)


def draw_sorted(logits: Tensor, sequences: ReadOnly[Sequence]) -> Tensor:
    """Cuts the tail by top_k, then by top_p of what is left; inverts the cumulative distribution, best ids first.

    Cumulative sums of sorted masses do not depend on how far they go on, so a short list gives the same ids as the whole vocabulary.
    """
    vocab = logits.shape[1]
    mass = masses(logits, sequences)
    top_k = [min(sequence.params.top_k, vocab) if sequence.params.top_k > 0 else vocab for sequence in sequences]
    top_p = column([sequence.params.top_p for sequence in sequences], mass)
    width = min(vocab, max(SHORTLIST, max((k for k in top_k if k < vocab), default=0)))
    while True:
        best, ids = mass.topk(width, dim=-1)
        running = best.cumsum(dim=-1)
        limit = torch.tensor([min(k, width) for k in top_k], device=logits.device)[:, None]
        all_kept = torch.tensor([k == vocab for k in top_k], device=logits.device)[:, None]
        total = torch.where(all_kept, mass.sum(dim=-1, keepdim=True), running.gather(1, limit - 1))
        goal = top_p * total
        reached = running[:, -1:] >= goal
        if width == vocab or bool((reached | ~all_kept).all()):
            break
        width = vocab
    # The id that reaches the goal is the last one kept; rounding may keep the sum from ever reaching it.
    kept = torch.minimum((running < goal).sum(dim=-1, keepdim=True) + 1, limit)
    place = torch.minimum(invert(running, running.gather(1, kept - 1), sequences)[:, None], kept - 1)
    return ids.gather(1, place)[:, 0]


def invert(running: Tensor, total: Tensor, sequences: ReadOnly[Sequence]) -> Tensor:
    """The first place of each row where the running sum exceeds the row's random share of `total`."""
    shares = column([uniform(sequence.seed, sequence.generated) for sequence in sequences], running)
    place = torch.searchsorted(running, shares * total, right=True)[:, 0]
    return place.clamp(max=running.shape[1] - 1)


def column(values: ReadOnly[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) that depends on nothing else: recomputing an answer, or its company in the batch, changes no draw.

    SplitMix64 (Steele, Lea, Flood 2014), started from the mixed seed so that neighbouring seeds have nothing in common.
    """
    state = (mix64(seed & MASK64) + (place + 1) * 0x9E3779B97F4A7C15) & MASK64
    return (mix64(state) >> 11) * 2.0**-53


def mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def show(
    raw: Tensor, rows: ReadOnly[int], ids: ReadOnly[int], sequences: ReadOnly[Sequence]
) -> dict[int, PositionLogprobs]:
    """Log probabilities by row; `raw` holds the rows that want them."""
    counted = [place for place, row in enumerate(rows) if sequences[row].params.logprob_token_ids is None]
    described = describe_sampled(
        raw if len(counted) == len(rows) else raw[counted],
        [ids[rows[place]] for place in counted],
        [sequences[rows[place]].params.logprobs or 0 for place in counted],
    )
    shown = {rows[place]: entry for place, entry in zip(counted, described, strict=True)}
    for place, row in enumerate(rows):
        chosen = sequences[row].params.logprob_token_ids
        if chosen is not None:
            shown[row] = describe_chosen(raw[place], ids[row], chosen)
    return shown
