"""Log probabilities of ids → of decoded tokens, with the true bytes of partial characters and text offsets."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from scaleout.codec import finite
from scaleout.core import DecodedLogprob, DecodedPosition, PositionLogprobs, PromptLogprobs
from scaleout.tokenizer import Tokenizer
from scaleout.tokenizer.decode_window import DecodeWindow, decode_next, open_window, pieces_of


def decode_position(
    tokenizer: Tokenizer, window: DecodeWindow, position: PositionLogprobs, offset: int
) -> DecodedPosition:
    """One position as it reads after `window`. A token that only ends a character shows the whole character; the one before, nothing."""
    sampled = position.sampled
    return DecodedPosition(
        _decode(tokenizer, window, sampled.token_id, sampled.logprob),
        [_decode(tokenizer, window, one.token_id, one.logprob) for one in position.top],
        offset,
    )


def _decode(tokenizer: Tokenizer, window: DecodeWindow, token_id: int, logprob: float | None) -> DecodedLogprob:
    _, steps = decode_next(tokenizer, window, [token_id])
    text = "".join(piece.text for piece in pieces_of(steps))
    return DecodedLogprob(token_id, text, None if logprob is None else finite(logprob), tokenizer.token_bytes(token_id))


def decode_prompt(tokenizer: Tokenizer, ids: Sequence[int], given: PromptLogprobs) -> list[DecodedPosition]:
    """Positions of an echoed prompt. Nothing is known of the first one; the others show their own token first, then by rank."""
    window, offset = open_window(tokenizer, ()), 0
    positions: list[DecodedPosition] = []
    for token_id, entry in zip(ids, given, strict=False):
        ranked = sorted((entry or {}).values(), key=lambda one: (one.token_id != token_id, one.rank or 0))
        own = ranked[0].logprob if ranked and ranked[0].token_id == token_id else None
        sampled = _decode(tokenizer, window, token_id, own)
        top = [_decode(tokenizer, window, one.token_id, one.logprob) for one in ranked]
        positions.append(DecodedPosition(sampled, top, offset))
        window, _ = decode_next(tokenizer, window, [token_id])
        offset += len(sampled.token)
    return positions


def name_ids(position: DecodedPosition) -> DecodedPosition:
    """The position with `token_id:N` for every token's text, and no bytes."""
    return evolve(position, sampled=_name(position.sampled), top=[_name(one) for one in position.top])


def _name(one: DecodedLogprob) -> DecodedLogprob:
    return evolve(one, token=f"token_id:{one.token_id}", bytes=None)
