"""Log probabilities in the shape of the wire contract: the chosen id first, then the best ones by rank."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly

import torch
from torch import Tensor

from scaleout.core import PositionLogprobs, TokenLogprob

LOWEST = -9999.0
"""Stands for minus infinity and for what is not a number, which JSON cannot say."""


def finite(logprobs: Tensor) -> Tensor:
    return torch.where(torch.isfinite(logprobs), logprobs, LOWEST)


def ranks_of(logprobs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities and ranks, both [rows, k], of `ids` [rows, k] among `logprobs` [rows, vocab]. Rank 1 is the best."""
    values = logprobs.gather(1, ids)
    ranks = torch.stack([(logprobs > column[:, None]).sum(1) for column in values.unbind(1)], 1) + 1
    return values, ranks


def describe_sampled(raw: Tensor, sampled: ReadOnly[int], counts: ReadOnly[int]) -> list[PositionLogprobs]:
    """`raw` [rows, vocab] are log probabilities; row i shows its sampled id, and the best up to max(counts[i], 1) entries; -1 is all."""
    if not counts:
        return []
    values, ranks = ranks_of(raw, torch.tensor(sampled, device=raw.device)[:, None])
    sampled_values, sampled_ranks = finite(values)[:, 0].tolist(), ranks[:, 0].tolist()
    vocab = raw.shape[1]
    widths = [vocab if count == -1 else min(count, vocab) for count in counts]
    top = raw.topk(max(*widths, 1), dim=1)
    best_values, best_ids = finite(top.values).tolist(), top.indices.tolist()
    answer = []
    for row, (token_id, width) in enumerate(zip(sampled, widths, strict=True)):
        own = TokenLogprob(token_id, sampled_values[row], sampled_ranks[row])
        best = [
            TokenLogprob(id, value, rank)
            for rank, (id, value) in enumerate(zip(best_ids[row][:width], best_values[row], strict=False), 1)
            if id != token_id
        ]
        answer.append(PositionLogprobs(own, [own, *best][: max(width, 1)]))
    return answer


def describe_chosen(raw: Tensor, sampled: int, ids: ReadOnly[int]) -> PositionLogprobs:
    """`raw` [vocab]: the sampled id, then exactly the ids that were asked for."""
    wanted = [sampled, *(id for id in ids if id != sampled)]
    values, ranks = ranks_of(raw[None], torch.tensor(wanted, device=raw.device)[None])
    shown = [
        TokenLogprob(id, value, rank)
        for id, value, rank in zip(wanted, finite(values)[0].tolist(), ranks[0].tolist(), strict=True)
    ]
    return PositionLogprobs(shown[0], shown)


def describe_prompt(logits: Tensor, actual: ReadOnly[int], count: int) -> list[dict[int, TokenLogprob] | None]:
    """`logits` [rows, vocab] predict `actual`: for each row the actual id, then the best `count` (-1: all), by id."""
    raw = torch.log_softmax(logits.float(), dim=-1)
    shown: list[dict[int, TokenLogprob] | None] = []
    values, ranks = ranks_of(raw, torch.tensor(actual, device=raw.device)[:, None])
    width = raw.shape[1] if count == -1 else min(count, raw.shape[1])
    best_values, best_ids = raw.topk(width, dim=1)
    for token_id, value, rank, row_values, row_ids in zip(
        actual,
        finite(values)[:, 0].tolist(),
        ranks[:, 0].tolist(),
        finite(best_values).tolist(),
        best_ids.tolist(),
        strict=True,
    ):
        entry = {token_id: TokenLogprob(token_id, value, rank)}
        for place, (id, best) in enumerate(zip(row_ids, row_values, strict=True), 1):
            entry.setdefault(id, TokenLogprob(id, best, place))
        shown.append(entry)
    return shown
