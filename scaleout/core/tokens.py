"""What travels between the stages: ids and sampling parameters to an engine, ids and log probabilities back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from scaleout.core.features import Features
from scaleout.core.requests import StreamOptions
from scaleout.core.values import Json, TokenIds


@frozen
class SamplingParams:
    """Sampling parameters as they travel to the engine (CONTRACT 2.3). Everything is decided: defaults are filled in by render.

    `max_tokens` None means "up to the context". `logprobs` None is off, 0 the sampled token alone, -1 the whole vocabulary.
    `output_kind`: 0 cumulative, 1 delta, 2 final only. `skip_clone` marks a body that a render stage wrote.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: TokenIds = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Sequence[Sequence[int]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: TokenIds | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: int = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    """Characters that an engine writing text holds back for the sake of `stop`."""
    structured_outputs: Mapping[str, Json] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: TokenIds | None = None
    extra_args: Mapping[str, Json] | None = None
    bad_words: Sequence[str] = ()
    skip_reading_prefix_cache: bool = False
    thinking_token_budget: int | None = None
    repetition_detection: Mapping[str, int] | None = None


@frozen
class GenerateRequest:
    """What render hands to an engine: token ids and how to continue them. Field order is the wire's (CONTRACT 2.3)."""

    request_id: str
    token_ids: TokenIds
    token_offsets: Sequence[Sequence[int]] | None = None
    features: Features | None = None
    content_parts: Sequence[Mapping[str, Json]] | None = None
    sampling_params: SamplingParams = field(factory=SamplingParams)
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Json] | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None
    assistant_tokens_mask: Sequence[int] | None = None
    """1 where the model would have sampled the token; same length as `token_ids`. On request only, like the two below."""
    spans: Sequence[Mapping[str, Json]] | None = None
    derender_state: Mapping[str, Json] | None = None
    trace_headers: Mapping[str, str] | None = None
    """W3C trace context of the call, for an engine elsewhere: it travels as headers, never in the body."""


@frozen
class TokenLogprob:
    """One id's log probability at one position. `rank` counts from 1; None when unknown."""

    token_id: int
    logprob: float
    rank: int | None = None


@frozen
class PositionLogprobs:
    """The sampled id of one position, and the ids beside it: sampled first, then by rank (CONTRACT 6.3)."""

    sampled: TokenLogprob
    top: Sequence[TokenLogprob] = ()


PromptLogprobs = Sequence[Mapping[int, TokenLogprob] | None]
"""Per prompt position the ids that were asked for, by id; None at position 0, which nothing precedes."""


@frozen
class PromptInfo:
    """What an engine says about the prompt once, with a choice's first delta."""

    token_ids: TokenIds | None = None
    cached_tokens: int | None = None
    logprobs: PromptLogprobs | None = None


@frozen
class TokenDelta:
    """What an engine gives for one choice since its last delta. `finish_reason` closes the choice.

    `stop_reason` is the stop token id that ended it, or None (EOS, length, abort).
    """

    index: int
    token_ids: TokenIds
    logprobs: Sequence[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt: PromptInfo | None = None
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None


@frozen
class GenerateResponse:
    """A whole result of an engine: one delta per choice, each finished. Written and read by the codec (CONTRACT 2.8)."""

    request_id: str
    choices: Sequence[TokenDelta]
    model: str | None = None
    created: int | None = None
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None


@frozen
class GenerateChunk:
    """One event of a streamed result: what came for one choice, or only the usage (no choices)."""

    request_id: str | None
    choices: Sequence[TokenDelta]
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None


@frozen
class Usage:
    """Token counts. `cached_tokens` and `reasoning_tokens` are None when nobody counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
