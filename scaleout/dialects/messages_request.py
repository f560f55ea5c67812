"""Anthropic request bodies → ChatRequest (CONTRACT 2.6, 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define

from scaleout import codec
from scaleout.codec import Unfit, invalid
from scaleout.core import ChatRequest, Json, RequestOptions, SamplingWishes, StreamOptions
from scaleout.dialects.fields import field_names
from scaleout.dialects.messages_blocks import read_conversation
from scaleout.dialects.messages_tools import read_choice, read_tools
from scaleout.errors import BadRequest
from scaleout.wire import check_cache_salt

MAX_STOPS = 4
LEAST_BUDGET = 1024


@define(kw_only=True, slots=True)
class OutputFormat:
    type: Literal["json_schema"]
    schema: Mapping[str, Json]


@define(kw_only=True, slots=True)
class OutputConfig:
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


@define(kw_only=True, slots=True)
class Thinking:
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


@define(kw_only=True, slots=True)
class MessagesBody:
    """Fields beside the conversation; `messages`, `system`, `tools` and `tool_choice` are read by hand for the sake of their paths."""

    model: str
    max_tokens: int | None = None
    stop_sequences: Sequence[str] = ()
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    metadata: Mapping[str, Json] | None = None
    chat_template_kwargs: Mapping[str, Json] | None = None
    mm_payload: Literal["tensors", "source", "none"] | None = None
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None
    vllm_xargs: Mapping[str, Json] | None = None
    return_assistant_tokens_mask: bool = False
    return_spans: bool = False
    return_derender_state: bool = False


def _prepare_body(wire: dict[str, Json]) -> dict[str, Json]:
    values = codec.drop_nulls(wire)
    if values.get("model") == "":
        raise Unfit("Value error, Model is required", ".model")
    if "max_tokens" in values and codec.read_member(values, "max_tokens", codec.read_int) <= 0:
        raise Unfit("Value error, max_tokens must be positive", ".max_tokens")
    stops = values.get("stop_sequences")
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        message = f"List should have at most {MAX_STOPS} items after validation, not {len(stops)}"
        raise Unfit(message, ".stop_sequences")
    if isinstance(stops, list) and "" in stops:
        raise Unfit("A stop sequence cannot be empty", f".stop_sequences[{stops.index('')}]")
    return values


def _prepare_thinking(wire: dict[str, Json]) -> dict[str, Json]:
    if wire.get("type") != "enabled":
        return {"type": wire.get("type")}
    if wire.get("budget_tokens") is None:
        raise Unfit("Field required", ".budget_tokens")
    if codec.read_member(wire, "budget_tokens", codec.read_int) < LEAST_BUDGET:
        raise Unfit(f"Input should be greater than or equal to {LEAST_BUDGET}", ".budget_tokens")
    return wire


for _nested in (OutputFormat, OutputConfig):
    codec.prepare(_nested, codec.drop_nulls)
codec.prepare(Thinking, _prepare_thinking)
codec.prepare(MessagesBody, _prepare_body)

FIELDS = field_names(MessagesBody) | {"messages", "system", "tools", "tool_choice"}


def parse(body: Mapping[str, Json]) -> ChatRequest:
    """A request body as a `ChatRequest`. Raises `InvalidField` with the JSON path, `BadRequest` for rules between fields."""
    if body.get("max_tokens") is None:
        raise invalid("body.max_tokens", "Field required")
    fields = codec.structure(body, MessagesBody)
    _check_budget(fields)
    return _read(body, fields)


def parse_to_count(body: Mapping[str, Json]) -> ChatRequest:
    """The body of `/v1/messages/count_tokens`: the same prompt as `parse` gives, where no limit of the answer is needed."""
    return _read(body, codec.structure(body, MessagesBody))


def _check_budget(fields: MessagesBody) -> None:
    budget = None if fields.thinking is None else fields.thinking.budget_tokens
    # A server that only fills a cache for another one is sent a max_tokens of 1.
    elsewhere = (fields.kv_transfer_params or {}).get("do_remote_decode")
    if budget is not None and fields.max_tokens is not None and budget >= fields.max_tokens and not elsewhere:
        raise invalid("body", "Value error, thinking.budget_tokens must be less than max_tokens")


def _read(body: Mapping[str, Json], fields: MessagesBody) -> ChatRequest:
    if "messages" not in body:
        raise invalid("body.messages", "Field required")
    if fields.cache_salt is not None:
        check_cache_salt(fields.cache_salt)
    conversation = read_conversation(body.get("system"), body["messages"])
    if not conversation.messages:
        raise BadRequest(
            "Cannot apply chat template to an empty conversation. Provide at least one message.", "messages"
        )
    tools = conversation.change_tools(read_tools(body.get("tools")))
    tool_choice, parallel = read_choice(body.get("tool_choice"), tools)
    output = fields.output_config or OutputConfig()
    disabled = fields.thinking is not None and fields.thinking.type == "disabled"
    return ChatRequest(
        messages=conversation.messages,
        tools=tools or None,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        sampling=_wishes(fields, output),
        options=_options(fields),
        chat_template_kwargs=fields.chat_template_kwargs or {},
        reasoning_effort="none" if disabled else output.effort,
        mm_options=_mm_options(fields),
        system_may_move=True,
    )


def _wishes(fields: MessagesBody, output: OutputConfig) -> SamplingWishes:
    return SamplingWishes(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        stop=fields.stop_sequences,
        max_tokens=fields.max_tokens,
        structured_outputs=None if output.format is None else {"json": output.format.schema},
        thinking_token_budget=None if fields.thinking is None else fields.thinking.budget_tokens,
        extra_args=fields.vllm_xargs,
    )


def _options(fields: MessagesBody) -> RequestOptions:
    user = (fields.metadata or {}).get("user_id")
    return RequestOptions(
        model=fields.model,
        stream=fields.stream,
        # The events count tokens at their beginning and at their end.
        stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True) if fields.stream else None,
        return_assistant_tokens_mask=fields.return_assistant_tokens_mask,
        return_spans=fields.return_spans,
        return_derender_state=fields.return_derender_state,
        user=user if isinstance(user, str) else None,
        cache_salt=fields.cache_salt,
        kv_transfer_params=fields.kv_transfer_params,
        ec_transfer_params=fields.ec_transfer_params,
    )


def _mm_options(fields: MessagesBody) -> dict[str, Json]:
    given = {"mm_payload": fields.mm_payload, "return_mm_kwargs": fields.return_mm_kwargs}
    return {name: value for name, value in given.items() if value is not None}
