"""Whether a prompt fits into the context, and cutting it where the request allows that (CONTRACT 3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scaleout.core import RequestOptions
from scaleout.errors import BadRequest

Offsets = Sequence[tuple[int, int]]


def check_truncation(options: RequestOptions, max_model_len: int) -> None:
    """Refuse a wish that cannot be met, before any work on the prompt."""
    wanted = options.truncate_prompt_tokens
    if wanted is None:
        return
    if wanted < -1:
        raise BadRequest("truncate_prompt_tokens must be at least -1.", "truncate_prompt_tokens", wanted)
    if wanted > max_model_len:
        raise BadRequest(
            f"truncate_prompt_tokens={wanted} cannot be greater than max_model_len = {max_model_len}. "
            "Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            wanted,
        )


def check_characters(text: str, max_model_len: int, most: int) -> None:
    """Refuse a text of more than `most` characters, which cannot fit whatever the tokenizer makes of it."""
    if len(text) > most:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {len(text)} characters "
            f"(more than {most} characters, which is the upper bound for {max_model_len} input tokens). "
            "Please reduce the length of the input prompt.",
            "input_text",
            len(text),
        )


def fit(
    ids: Sequence[int],
    offsets: Offsets | None,
    options: RequestOptions,
    max_model_len: int,
    side: Literal["left", "right"],
) -> tuple[Sequence[int], Offsets | None]:
    """The ids, and their offsets, that go to the engine: cut if asked for, with room for at least one new token.

    `side` is where ids are taken away unless the request says. Raises `BadRequest` naming tokens and limit.
    """
    wanted = options.truncate_prompt_tokens
    if wanted is not None:
        keep = max_model_len - 1 if wanted == -1 else wanted
        if len(ids) > keep:
            kept = slice(len(ids) - keep, None) if (options.truncation_side or side) == "left" else slice(0, keep)
            ids = ids[kept]
            offsets = None if offsets is None else offsets[kept]
    if not ids:
        raise BadRequest("No token_ids rendered", "prompt")
    if len(ids) >= max_model_len:
        excess = (
            "which exceeds this limit even without any output tokens"
            if len(ids) > max_model_len
            else "which leaves no room for output tokens"
        )
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {len(ids)} input tokens, "
            f"{excess}. Please reduce the length of the input prompt.",
            "input_tokens",
            len(ids),
        )
    return ids, offsets
