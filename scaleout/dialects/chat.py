"""OpenAI chat completions: request bodies → ChatRequest, answers → `chat.completion` objects and chunks (CONTRACT 2.4, 2.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define

from scaleout import codec
from scaleout.core import (
    AnswerHead,
    CallAnswer,
    ChatRequest,
    ChoiceAnswer,
    ChoiceDelta,
    Content,
    DecodedLogprob,
    DecodedPosition,
    Json,
    Reasoning,
    ToolArguments,
    ToolEnd,
    ToolStart,
    Usage,
)
from scaleout.dialects.dialect import Gather, Request
from scaleout.dialects.fields import (
    SharedBody,
    check_shared,
    field_names,
    make_request_id,
    options_of,
    prepare_shared,
    wishes_of,
)
from scaleout.dialects.messages_in import read_messages, read_tool_choice, read_tools
from scaleout.errors import BadRequest
from scaleout.wire import write_usage

NAME = "chat"
PATH = "/v1/chat/completions"
ID_PREFIX = "chatcmpl-"
NAMED_EVENTS = False


def name_request(wanted: Request, traced: str | None) -> str:
    return make_request_id(ID_PREFIX, wanted.options, traced)


@define(kw_only=True, slots=True)
class ChatBody(SharedBody):
    """Chat's own fields; `messages`, `tools` and `tool_choice` are read by hand for the sake of their error paths."""

    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Json] | None = None
    documents: Sequence[Mapping[str, Json]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    media_io_kwargs: Mapping[str, Json] | None = None
    mm_processor_kwargs: Mapping[str, Json] | None = None
    mm_payload: Literal["tensors", "source", "none"] | None = None
    return_mm_kwargs: bool | None = None


codec.prepare(ChatBody, prepare_shared)

FIELDS = field_names(ChatBody) | {"messages", "tools", "tool_choice"}


def parse(body: Mapping[str, Json]) -> ChatRequest:
    """A request body as a `ChatRequest`. Raises `InvalidField` with the JSON path, `BadRequest` for rules between fields."""
    if "messages" not in body:
        raise codec.invalid("body.messages", "Field required")
    fields = codec.structure(body, ChatBody)
    tools = read_tools(body.get("tools"))
    tool_choice = read_tool_choice(body, tools)
    _check(fields, tool_choice is not None and tool_choice.mode == "named", body)
    limit_name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    logprobs = fields.top_logprobs if fields.logprobs else None
    mm_options = {
        name: value
        for name in ("media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs")
        if (value := getattr(fields, name)) is not None
    }
    return ChatRequest(
        messages=read_messages(body["messages"]),
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=fields.parallel_tool_calls,
        include_reasoning=fields.include_reasoning,
        sampling=wishes_of(
            fields, logprobs=logprobs, max_tokens=max_tokens, limit_name=limit_name, echoed_logprobs=fields.top_logprobs
        ),
        options=options_of(fields, add_special_tokens=fields.add_special_tokens),
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template=fields.chat_template,
        chat_template_kwargs=fields.chat_template_kwargs or {},
        documents=_read_documents(fields.documents),
        reasoning_effort=fields.reasoning_effort,
        mm_options=mm_options,
    )


def _check(fields: ChatBody, named: bool, body: Mapping[str, Json]) -> None:
    check_shared(fields)
    if fields.continue_final_message and body.get("add_generation_prompt"):
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "continue_final_message"
        )
    if fields.top_logprobs < 0 and fields.top_logprobs != -1:
        raise BadRequest("`top_logprobs` must be a positive value or -1.", "top_logprobs", fields.top_logprobs)
    if fields.top_logprobs and not fields.logprobs:
        raise BadRequest("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if fields.logprob_token_ids is not None and not fields.logprobs:
        raise BadRequest("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
    if named and fields.structured_outputs is not None:
        raise BadRequest(
            "You can only either use constraints for structured outputs or tools, not both.", "structured_outputs"
        )


def _read_documents(documents: Sequence[Mapping[str, Json]] | None) -> Sequence[Mapping[str, str]] | None:
    for i, document in enumerate(documents or ()):
        for key, value in document.items():
            if not isinstance(value, str):
                raise codec.invalid(f"body.documents.{i}.{key}", "Input should be a valid string")
    return documents


# ---------------------------------------------------------------------------------------------- answers


def response(head: AnswerHead, request: Request | None, answers: Sequence[ChoiceAnswer], usage: Usage) -> Json:
    """A whole `chat.completion`, every key present."""
    show_ids = request is not None and request.options.return_token_ids
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [_choice(answer, show_ids) for answer in answers],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": write_usage(usage),
        "prompt_logprobs": head.prompt_logprobs,
        "prompt_token_ids": head.prompt_token_ids if show_ids else None,
        "prompt_text": head.prompt_text,
        "kv_transfer_params": head.kv_transfer_params,
        "ec_transfer_params": head.ec_transfer_params,
        "metrics": None,
    }


def _choice(answer: ChoiceAnswer, show_ids: bool) -> Json:
    message: dict[str, Json] = {
        "role": "assistant",
        "content": answer.content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": answer.reasoning,
    }
    if answer.tool_calls:
        message["tool_calls"] = [_call(call) for call in answer.tool_calls]
    return {
        "index": answer.index,
        "message": message,
        "logprobs": _logprobs(answer.logprobs),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "token_ids": answer.token_ids if show_ids else None,
        "routed_experts": None,
    }


def _call(call: CallAnswer) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(positions: Sequence[DecodedPosition] | None) -> Json:
    if positions is None:
        return None
    return {"content": [{**_logprob(p.sampled), "top_logprobs": [_logprob(top) for top in p.top]} for p in positions]}


def _logprob(one: DecodedLogprob) -> dict[str, Json]:
    return {"token": one.token, "logprob": one.logprob, "bytes": None if one.bytes is None else list(one.bytes)}


def open_stream(request: Request | None) -> dict[str, Json]:
    """What the chunks of one choice must remember, as JSON: whether the role was sent, whether ids are shown."""
    return {"ids": True} if request is not None and request.options.return_token_ids else {}


def chunk(
    head: AnswerHead, carry: dict[str, Json], delta: ChoiceDelta | None, usage: Usage | None
) -> tuple[dict[str, Json], list[Json]]:
    """One `chat.completion.chunk`; `delta` None is the usage chunk. Returns the changed `carry` beside it.

    Ids of the prompt travel with the first chunk of a choice only.
    """
    wire: dict[str, Json] = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": [],
        "usage": None if usage is None else write_usage(usage),
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": None,
    }
    if delta is None:
        return carry, [wire]
    show_ids = bool(carry.get("ids"))
    first = not carry.get("role")
    wire["choices"] = [
        {
            "index": delta.index,
            "delta": _delta(delta, first),
            "logprobs": _logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids if show_ids else None,
        }
    ]
    if first:
        carry = {**carry, "role": True}
        wire["prompt_text"] = head.prompt_text
        if show_ids:
            wire["prompt_token_ids"] = head.prompt_token_ids
    return carry, [wire]


def _delta(delta: ChoiceDelta, first: bool) -> dict[str, Json]:
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, dict[str, Json]] = {}
    for event in delta.events:
        if type(event) is Content:
            content.append(event.text)
        elif type(event) is Reasoning:
            reasoning.append(event.text)
        elif type(event) is ToolStart:
            calls[event.index] = {
                "index": event.index,
                "id": event.id,
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        elif type(event) is ToolArguments:
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    wire: dict[str, Json] = {"role": "assistant" if first else None, "content": "".join(content) if content else None}
    wire["reasoning"] = "".join(reasoning) if reasoning else None
    if calls:
        wire["tool_calls"] = list(calls.values())
    return wire


def says_something(delta: ChoiceDelta, carry: Mapping[str, Json]) -> bool:
    """Whether a chunk of this delta would carry anything: the first has the role, others may be empty while text is held back."""
    if not carry.get("role"):
        return True
    if delta.finish_reason or delta.logprobs or (carry.get("ids") and delta.token_ids):
        return True
    return not set(map(type, delta.events)) <= {ToolEnd}


def gather(request: Request | None) -> Gather | None:
    """Chunks leave nothing open."""
    return None
