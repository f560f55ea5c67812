"""Answers in the responses API's shape: a response of output items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleout.core import AnswerHead, ChatRequest, ChoiceAnswer, DecodedLogprob, DecodedPosition, Json, Usage
from scaleout.dialects.custom_input import unwrap
from scaleout.dialects.dialect import Request
from scaleout.dialects.items import Item, Kind, items_of
from scaleout.dialects.responses_tools import Naming, naming_of

# Without its request a response repeats no more than its schema demands.
_NO_ECHO: Mapping[str, Json] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIXES: Mapping[Kind, str] = {"content": "msg", "reasoning": "rs", "call": "fc"}
CUT = ("length", "abort", "content_filter")


def response(head: AnswerHead, request: Request | None, answers: Sequence[ChoiceAnswer], usage: Usage) -> Json:
    """A whole response. The API knows one answer per request: the first."""
    echo = echo_of(request)
    naming = naming_of(echo.get("tools"))
    if not answers:
        return write_response(head, echo, [], "stop", usage)
    answer = answers[0]
    items = items_of(answer, cut=answer.finish_reason in CUT)
    logprobs = write_logprobs(answer.logprobs)
    output = []
    for item in items:
        output.append(write_item(head, item, naming, logprobs if item.kind == "content" else []))
        if item.kind == "content":
            logprobs = []
    return write_response(head, echo, output, answer.finish_reason, usage)


def echo_of(request: Request | None) -> Mapping[str, Json]:
    """What the response repeats of its request."""
    return (request.echo if isinstance(request, ChatRequest) else {}) or _NO_ECHO


def write_response(
    head: AnswerHead, echo: Mapping[str, Json], output: list[Json], finish_reason: str | None, usage: Usage | None
) -> dict[str, Json]:
    """The response object. Without `usage` it is still in progress."""
    status, details = "in_progress", None
    if usage is not None:
        status = "completed" if finish_reason is not None and finish_reason not in CUT else "incomplete"
        reason = _REASONS.get(finish_reason or "")
        details = None if reason is None else {"reason": reason}
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "error": None,
        "incomplete_details": details,
        "model": head.model,
        "output": output,
        "usage": None if usage is None else write_usage(usage),
        "kv_transfer_params": head.kv_transfer_params,
        "ec_transfer_params": head.ec_transfer_params,
        **echo,
    }


def write_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def item_id(head: AnswerHead, index: int, kind: Kind, custom: bool = False) -> str:
    """The same item of the same response has the same id, however often it is written."""
    prefix = "ctc" if custom else _PREFIXES[kind]
    return f"{prefix}_{head.id.removeprefix('resp_')}_{index}"


def write_item(
    head: AnswerHead, item: Item, naming: Naming, logprobs: list[Json], status: str | None = None
) -> dict[str, Json]:
    """One output item. `status` None: completed, or incomplete where it was cut."""
    status = status or ("completed" if item.whole else "incomplete")
    if item.kind == "reasoning":
        return {
            "id": item_id(head, item.index, item.kind),
            "type": "reasoning",
            "summary": [],
            "content": [reasoning_part(item.text)] if item.text else [],
            "encrypted_content": None,
            "status": status,
        }
    if item.kind == "content":
        return {
            "id": item_id(head, item.index, item.kind),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [text_part(item.text, logprobs)] if item.text or logprobs else [],
        }
    name, space = naming.split(item.name)
    custom = item.name in naming.custom
    wire = {
        "id": item_id(head, item.index, item.kind, custom),
        "type": "custom_tool_call" if custom else "function_call",
        "status": status,
        "call_id": item.id,
        "name": name,
        **({"input": unwrap(item.text)} if custom else {"arguments": item.text}),
    }
    return wire if space is None else {**wire, "namespace": space}


def reasoning_part(text: str) -> dict[str, Json]:
    return {"type": "reasoning_text", "text": text}


def text_part(text: str, logprobs: list[Json]) -> dict[str, Json]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def write_logprobs(positions: Sequence[DecodedPosition] | None) -> list[Json]:
    """Positions of visible text."""
    return [
        {**_logprob(p.sampled), "top_logprobs": [_logprob(one) for one in p.top]}
        for p in positions or ()
        if p.region in (None, "content")
    ]


def _logprob(one: DecodedLogprob) -> dict[str, Json]:
    return {"token": one.token, "logprob": one.logprob, "bytes": list(one.bytes or b"")}
