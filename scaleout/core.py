"""The nouns every floor speaks: requests, token ids, deltas, events. Data only; knows no wire format, tokenizer or engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from attrs import define, field, frozen

Json = Any
"""A value as `orjson` reads it: dict, list, str, int, float, bool or None."""

TokenIds = Annotated[Sequence[int], "token ids"]
"""Non-negative ids. A type of its own because the codec checks such lists at C speed, not item by item."""

FinishReason = Literal["stop", "length", "abort", "tool_calls"]


# ---------------------------------------------------------------------------------------------- requests


@frozen
class Part:
    """One part of a message's content. `data` holds what is not text, as the dialect read it (media, tool references, extras)."""

    type: str
    text: str | None = None
    data: Mapping[str, Json] = field(factory=dict)


@frozen
class ToolCall:
    """A call in the conversation's history. `arguments` is the parsed object: what templates loop over."""

    id: str | None
    name: str
    arguments: Mapping[str, Json]


@frozen
class Message:
    """One turn. `content` is None only where the request said null; absent content is the empty string."""

    role: str
    content: str | Sequence[Part] | None = ""
    name: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    extra: Mapping[str, Json] = field(factory=dict)


@frozen
class Tool:
    """A declared function. `parameters` is its JSON schema; null description and parameters stay null (templates see them)."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Json] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


@frozen
class ToolChoice:
    """`mode` none | auto | required | named; `name` is set for named."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None


@frozen
class StreamOptions:
    include_usage: bool = False
    continuous_usage_stats: bool = False


@frozen
class SamplingWishes:
    """Sampling fields as the caller sent them; None means "not sent", so that the server's default applies (CONTRACT 3.9).

    `limit_name` is the field that carried `max_tokens`, for error texts.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    limit_name: str = "max_tokens"
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: TokenIds | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Sequence[str] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: Mapping[str, Json] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Mapping[str, int] | None = None
    stream_interval: int | None = None
    extra_args: Mapping[str, Json] | None = None


@frozen
class RequestOptions:
    """What both kinds of request share beside sampling: identity, transport, and what the answer should carry."""

    model: str | None = None
    request_id: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    add_special_tokens: bool = False
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool = False
    return_token_offsets: bool = False
    return_tokens_as_token_ids: bool = False
    return_prompt_text: bool = False
    return_assistant_tokens_mask: bool = False
    return_spans: bool = False
    return_derender_state: bool = False
    user: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None


@frozen
class ChatRequest:
    """A conversation to answer, whatever dialect it came in. `tools` is None when the request declared none."""

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    sampling: SamplingWishes = field(factory=SamplingWishes)
    options: RequestOptions = field(factory=RequestOptions)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Json] = field(factory=dict)
    documents: Sequence[Mapping[str, str]] | None = None
    reasoning_effort: str | None = None
    mm_options: Mapping[str, Json] = field(factory=dict)
    """media_io_kwargs, mm_processor_kwargs, mm_payload: only the multimodal part of render reads them."""
    system_may_move: bool = False
    """Where the template takes no system message between turns, the text of such messages joins the leading one (CONTRACT 5.1)."""
    echo: Mapping[str, Json] = field(factory=dict)
    """What the answer repeats of the request; only the dialect that read it knows the names."""


@frozen
class CompletionRequest:
    """Prompts to continue as they stand: text, or token ids. One GenerateRequest comes of each."""

    prompts: Sequence[str | Sequence[int]]
    suffix: str | None = None
    sampling: SamplingWishes = field(factory=SamplingWishes)
    options: RequestOptions = field(factory=RequestOptions)


# ---------------------------------------------------------------------------------------------- render → generate


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
    features: Mapping[str, Json] | None = None
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


# ---------------------------------------------------------------------------------------------- generate → derender


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


# ---------------------------------------------------------------------------------------------- text on its way to a parser


@frozen
class Piece:
    """A stretch of decoded text. `marker`: it is exactly one added token; `special`: the vocabulary flags that token special.

    Adjacent plain pieces may be merged or split anywhere without a change of meaning.
    """

    text: str
    marker: bool = False
    special: bool = False


# ---------------------------------------------------------------------------------------------- parser events (closed set)


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


# ---------------------------------------------------------------------------------------------- derender → dialects


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
