"""Text on its way to a reader: pieces for a parser, the events it gives, and what dialects make answers of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define, field, frozen

from scaleout.core.values import Json, TokenIds


@frozen
class Piece:
    """A stretch of decoded text. `marker`: it is exactly one added token; `special`: the vocabulary flags that token special.

    Adjacent plain pieces may be merged or split anywhere without a change of meaning.
    """

    text: str
    marker: bool = False
    special: bool = False


@frozen
class Reasoning:
    text: str


@frozen
class Content:
    text: str


@frozen
class ToolStart:
    """A call is announced. `id` is the model's own where the family writes one, else None and derender makes one."""

    index: int
    id: str | None
    name: str


@frozen
class ToolArguments:
    index: int
    text: str


ToolStatus = Literal["ok", "unclosed", "malformed"]


@frozen
class ToolEnd:
    index: int
    status: ToolStatus


Event = Reasoning | Content | ToolStart | ToolArguments | ToolEnd


@frozen
class DecodedLogprob:
    """A token's logprob with its text and true bytes (`bytes` None for an unknown id)."""

    token_id: int
    token: str
    logprob: float | None
    bytes: bytes | None


@frozen
class DecodedPosition:
    """One position as clients see it. `text_offset` counts characters of the answer before this token.

    `region` says where the token's text went; None when that is not known, which counts as content.
    """

    sampled: DecodedLogprob
    top: Sequence[DecodedLogprob]
    text_offset: int = 0
    region: Literal["content", "reasoning", "call"] | None = None


@frozen
class ChoiceDelta:
    """What derender gives for one choice since the last delta: events in order, and what travels beside them."""

    index: int
    events: Sequence[Event] = ()
    token_ids: TokenIds = ()
    logprobs: Sequence[DecodedPosition] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sampled: int = 0
    """How many ids this delta stands for, those included that the request hides from view."""
    reasoning_tokens: int | None = None
    """How many of them were thought; None where the format knows no thoughts."""


@define
class CallAnswer:
    """One finished or cut call of an answer."""

    id: str
    name: str
    arguments: str = ""
    status: ToolStatus | None = None


@define
class ChoiceAnswer:
    """All deltas of one choice, folded. `content` and `reasoning` are None where nothing of the kind was said (FORMATS R13).

    `events` holds the same in the order it was said, neighbouring pieces of one field joined.
    """

    index: int
    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[CallAnswer] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    logprobs: list[DecodedPosition] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sampled: int = 0
    reasoning_tokens: int | None = None
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: Json = None
    events: list[Event] = field(factory=list)


@frozen
class AnswerHead:
    """What is the same for every chunk of one answer."""

    id: str
    created: int
    model: str
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: Json = None
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None
    prompt_text: str | None = None
    """The prompt as text, control tokens and all, where the request wants to see it."""
