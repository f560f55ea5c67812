"""What a template can read beside the messages, and who decides it (CONTRACT 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaleout.core import ChatRequest, Json
from scaleout.errors import BadRequest

RESERVED = frozenset({"messages", "conversation", "return_assistant_tokens_mask"})
"""Names that the request has fields of their own for."""

NOT_VARIABLES = frozenset(
    {
        *("messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""Names that transformers takes as arguments of the call, so that no template ever sees them as given."""


def merge_kwargs(request: ChatRequest, defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Server defaults, under the request's `chat_template_kwargs`, under its own fields. Null and "auto" decide nothing.

    This is also what a reasoning parser of the reference peer is told. Raises `BadRequest` for names that are not free.
    """
    given = {
        name: value for name, value in request.chat_template_kwargs.items() if value is not None and value != "auto"
    }
    taken = sorted(RESERVED & given.keys())
    if taken:
        raise BadRequest(
            f"chat_template_kwargs must not hold {taken[0]!r}: that is not a variable of its own.",
            f"chat_template_kwargs.{taken[0]}",
        )
    merged = {**defaults, **given}
    merged["add_generation_prompt"] = request.add_generation_prompt
    merged["continue_final_message"] = request.continue_final_message
    if request.documents is not None:
        merged["documents"] = list(request.documents)
    effort = request.reasoning_effort
    if effort is not None:
        merged["reasoning_effort"] = effort
        # Said is said, even where it decides nothing.
        if "enable_thinking" not in request.chat_template_kwargs:
            merged["enable_thinking"] = effort != "none"
    return merged


def template_variables(
    merged: Mapping[str, Json], read: frozenset[str], special_tokens: Mapping[str, str]
) -> dict[str, Any]:
    """The variables among `merged` that the template reads, and the names of the special tokens."""
    chosen = {name: value for name, value in merged.items() if name in read and name not in NOT_VARIABLES}
    return {**special_tokens, **chosen}
