"""Limits on what a client may ask to have derendered, all checked before anything is decoded (CONTRACT 7.2)."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from scaleout.core import PositionLogprobs, PromptLogprobs, TokenDelta
from scaleout.errors import BadRequest


@frozen
class DerenderBounds:
    """`vocab_size` is the larger of the model's and the tokenizer's: padding ids decode to nothing, ids beyond are refused."""

    max_choices: int
    max_model_len: int
    max_logprobs: int
    vocab_size: int

    def check_choices(self, choices: Sequence[TokenDelta], request_id: str, path: str) -> None:
        """Raises `BadRequest` naming the first choice that is too much."""
        self.check_count(len(choices), request_id, path)
        for i, choice in enumerate(choices):
            self.check_ids(choice.token_ids, f"token_ids length ({{}}) in choice {i}", f"{path}.choices.{i}.token_ids")
            if choice.logprobs is not None:
                self._check_logprobs(choice.logprobs, i, f"{path}.choices.{i}.logprobs.content")

    def check_count(self, choices: int, request_id: str, path: str) -> None:
        if choices > self.max_choices:
            raise BadRequest(
                f"choices count ({choices}) in response {request_id!r} exceeds server maximum ({self.max_choices}).",
                f"{path}.choices",
            )

    def check_length(self, ids: int, what: str, path: str) -> None:
        """`what` names the list and its length."""
        if ids > self.max_model_len:
            raise BadRequest(f"{what} exceeds max_model_len ({self.max_model_len}).", path)

    def check_ids(self, ids: Sequence[int], what: str, path: str) -> None:
        """Length within the context, every id known. `what` names the list, with `{}` for its length."""
        self.check_length(len(ids), what.format(len(ids)), path)
        if ids and max(ids) >= self.vocab_size:
            at = next(i for i, one in enumerate(ids) if one >= self.vocab_size)
            raise BadRequest(f"Token id {ids[at]} is out of vocabulary", f"{path}.{at}")

    def _check_logprobs(self, positions: Sequence[PositionLogprobs], choice: int, path: str) -> None:
        if len(positions) > self.max_model_len:
            raise BadRequest(
                f"logprobs.content length ({len(positions)}) in choice {choice} "
                f"exceeds max_model_len ({self.max_model_len}).",
                path,
            )
        for i, position in enumerate(positions):
            if 0 <= self.max_logprobs < len(position.top) - 1:
                raise BadRequest(
                    f"top_logprobs count ({len(position.top)}) in choice {choice} "
                    f"exceeds max_logprobs ({self.max_logprobs}).",
                    f"{path}.{i}.top_logprobs",
                )
            if any(one.token_id >= self.vocab_size for one in (position.sampled, *position.top)):
                raise BadRequest("A token id is out of vocabulary", f"{path}.{i}")

    def check_prompt_logprobs(self, given: PromptLogprobs | None, request_id: str, path: str) -> None:
        """As many positions as a prompt can have, every id known."""
        if given is None:
            return
        if len(given) > self.max_model_len:
            raise BadRequest(
                f"prompt_logprobs length ({len(given)}) in response {request_id!r} "
                f"exceeds max_model_len ({self.max_model_len}).",
                f"{path}.prompt_logprobs",
            )
        for i, position in enumerate(given):
            if position and max(position) >= self.vocab_size:
                raise BadRequest("A token id is out of vocabulary", f"{path}.prompt_logprobs.{i}")
