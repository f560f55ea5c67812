"""What a caller asks for, whatever dialect it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from scaleout.core.values import Json, TokenIds


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
    echo_alone: bool = False
    """The prompt is the whole answer: what an engine cannot help sampling is not shown."""
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
