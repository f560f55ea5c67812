"""Answers in Anthropic's shape: a message of content blocks, or the events that build one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from scaleout import codec
from scaleout.core import AnswerHead, ChoiceAnswer, ChoiceDelta, Json, Usage
from scaleout.dialects.dialect import Request
from scaleout.dialects.items import Begin, Item, Kind, More, Progress, Step, dump_progress, items_of, load_progress
from scaleout.errors import BadState

# What an operator aborted may be asked for again; the API has no nearer word.
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "abort": "pause_turn", "content_filter": "refusal"}
_BLOCKS: dict[Kind, Json] = {
    "content": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS: dict[Kind, tuple[str, str]] = {
    "content": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
NOT_JSON = "INVALID_JSON"
"""The key under which Anthropic's documents carry a call's input that is no JSON object."""


# ---------------------------------------------------------------------------------------------- whole answers


def response(head: AnswerHead, request: Request | None, answers: Sequence[ChoiceAnswer], usage: Usage) -> Json:
    """A whole message. The API knows one answer per request: the first."""
    message = _open_message(head, _usage(usage))
    for answer in answers[:1]:
        message["content"] = [_block(head, item) for item in items_of(answer, cut=False)]
        message["stop_reason"], message["stop_sequence"] = _stop(answer.finish_reason, answer.stop_reason)
    return message


def _open_message(head: AnswerHead, usage: Json) -> dict[str, Json]:
    return {
        "id": message_id(head),
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def message_id(head: AnswerHead) -> str:
    """`msg_x` for the request `chatcmpl-x`; an id of another form is kept whole."""
    return f"msg_{head.id.removeprefix('chatcmpl-').removeprefix('msg_')}"


def _block(head: AnswerHead, item: Item) -> Json:
    if item.kind == "content":
        return {"type": "text", "text": item.text}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": _sign(head, item.index)}
    return {"type": "tool_use", "id": item.id, "name": item.name, "input": read_input(item.text)}


def read_input(arguments: str) -> dict[str, Json]:
    """A call's arguments as the object that the API has for them. Text that is no JSON object is kept under `NOT_JSON`."""
    if not arguments.strip():
        return {}
    try:
        value = codec.loads(arguments)
        # What is nested deeper than a writer goes can be read and not be answered.
        codec.dumps([[[value]]])
    except (ValueError, TypeError):
        value = None
    return value if isinstance(value, dict) else {NOT_JSON: arguments}


def _sign(head: AnswerHead, index: int) -> str:
    """Clients send a thought's signature back unread, and some drop thoughts without one. Ours only has to be there."""
    return f"{message_id(head)}.{index}"


def _stop(finish_reason: str | None, stop_reason: int | str | None) -> tuple[str | None, str | None]:
    sequence = stop_reason if isinstance(stop_reason, str) else None
    if finish_reason is None:
        return None, sequence
    return _STOP_REASONS.get(finish_reason, "end_turn" if sequence is None else "stop_sequence"), sequence


def _usage(usage: Usage) -> dict[str, Json]:
    """The API counts cached input apart: its three input counts add up to the prompt."""
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": max(usage.prompt_tokens - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


# ---------------------------------------------------------------------------------------------- events


@define
class _Carry:
    """What the events of one message must remember: nothing in it grows with the answer."""

    progress: Progress
    phase: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str | None = None
    stop: str | None = None


# Phases of a stream.
_UNBEGUN, _RUNNING, _OVER = range(3)


def open_stream(request: Request | None) -> dict[str, Json]:
    """The `carry` before the first event."""
    return _dump(_Carry(Progress()))


def chunk(
    head: AnswerHead, carry: dict[str, Json], delta: ChoiceDelta | None, usage: Usage | None
) -> tuple[dict[str, Json], list[Json]]:
    """The events of one delta; `delta` None ends the message with its stop reason and usage, once."""
    state = _load(carry)
    events: list[Json] = []
    if state.phase == _OVER:
        return carry, events
    if state.phase == _UNBEGUN:
        state.phase = _RUNNING
        begin = usage or Usage(len(head.prompt_token_ids or ()))
        state.prompt_tokens = begin.prompt_tokens
        counted = _usage(Usage(begin.prompt_tokens, 0, begin.cached_tokens))
        events.append({"type": "message_start", "message": _open_message(head, counted)})
    if delta is not None:
        state.tokens += len(delta.token_ids)
        steps = state.progress.take(delta.events)
        if delta.finish_reason is not None:
            state.finish_reason = delta.finish_reason
            state.stop = delta.stop_reason if isinstance(delta.stop_reason, str) else None
            steps += state.progress.finish(cut=False)
        events += _write(head, steps)
    else:
        state.phase = _OVER
        events += _write(head, state.progress.finish(cut=False))
        reason, sequence = _stop(state.finish_reason, state.stop)
        counted = _usage(usage or Usage(state.prompt_tokens, state.tokens))
        events.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": counted,
            }
        )
        events.append({"type": "message_stop"})
    return _dump(state), events


def _write(head: AnswerHead, steps: Sequence[Step]) -> list[Json]:
    events: list[Json] = []
    for step in steps:
        if isinstance(step, Begin):
            block = _BLOCKS.get(step.kind) or {"type": "tool_use", "id": step.id, "name": step.name, "input": {}}
            events.append({"type": "content_block_start", "index": step.index, "content_block": block})
        elif isinstance(step, More):
            kind, key = _DELTAS[step.kind]
            events.append(_delta(step.index, {"type": kind, key: step.text}))
        else:
            if step.kind == "reasoning":
                events.append(_delta(step.index, {"type": "signature_delta", "signature": _sign(head, step.index)}))
            events.append({"type": "content_block_stop", "index": step.index})
    return events


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def says_something(delta: ChoiceDelta, carry: Mapping[str, Json]) -> bool:
    """Always: a delta that says nothing has no events."""
    return True


def _dump(state: _Carry) -> dict[str, Json]:
    counts = [state.phase, state.tokens, state.prompt_tokens]
    return {"at": dump_progress(state.progress), "n": counts, "end": [state.finish_reason, state.stop]}


def _load(carry: Mapping[str, Json]) -> _Carry:
    match carry:
        case {
            "at": at,
            "n": [int(phase), int(tokens), int(prompt)],
            "end": [(str() | None) as reason, (str() | None) as stop],
        } if phase in (_UNBEGUN, _RUNNING, _OVER):
            return _Carry(load_progress(at), phase, max(tokens, 0), max(prompt, 0), reason, stop)
    raise BadState("stream_state: bad carry", "stream_state")
