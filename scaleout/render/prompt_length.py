"""Whether a prompt fits into the context, and cutting it where the request allows that (CONTRACT 3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

from scaleout.core import RequestOptions
from scaleout.errors import BadRequest
from scaleout.tokenizer import Tokenizer

Side = Literal["left", "right"]


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


@frozen
class Edges:
    """Ids that the tokenizer puts around a text when asked for special tokens. Cutting a prompt leaves them where they are."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Edges:
        bare = tokenizer.encode("a", add_special_tokens=False)
        around = tokenizer.encode("a", add_special_tokens=True)
        start = next((i for i in range(len(around)) if around[i : i + len(bare)] == bare), 0)
        return cls(around[:start], around[start + len(bare) :])

    def split(self, ids: Sequence[int]) -> tuple[int, int]:
        """Where the text begins and ends in `ids`: the edges are only counted where they are."""
        start = len(self.before) if list(ids[: len(self.before)]) == self.before else 0
        end = len(ids) - len(self.after)
        return start, end if end > start and list(ids[end:]) == self.after else len(ids)


NO_EDGES = Edges([], [])


def positions_to_keep(
    ids: Sequence[int], options: RequestOptions, max_model_len: int, side: Side, edges: Edges = NO_EDGES
) -> list[int] | None:
    """Positions of `ids` that stay when the request asks for a cut prompt; None for all. −1 leaves room for one new token.

    `side` is where ids are taken away unless the request says.
    """
    wanted = options.truncate_prompt_tokens
    if wanted is None:
        return None
    keep = max_model_len - 1 if wanted == -1 else wanted
    if len(ids) <= keep:
        return None
    start, end = edges.split(ids)
    room = max(keep - start - (len(ids) - end), 0)
    text = range(end - room, end) if (options.truncation_side or side) == "left" else range(start, start + room)
    return [*range(start), *text, *range(end, len(ids))][:keep]


def check_length(count: int, max_model_len: int) -> None:
    """Refuse an empty prompt, and one of `count` ids that leaves no room for a new token."""
    if not count:
        raise BadRequest("No token_ids rendered", "prompt")
    if count >= max_model_len:
        excess = (
            "which exceeds this limit even without any output tokens"
            if count > max_model_len
            else "which leaves no room for output tokens"
        )
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {count} input tokens, "
            f"{excess}. Please reduce the length of the input prompt.",
            "input_tokens",
            count,
        )
