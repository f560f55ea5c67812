"""All deltas of one choice → its whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from scaleout.core import (
    CallAnswer,
    ChoiceAnswer,
    ChoiceDelta,
    Content,
    Event,
    Reasoning,
    ToolArguments,
    ToolEnd,
    ToolStart,
)


def fold(deltas: Iterable[ChoiceDelta]) -> ChoiceAnswer:
    """The answer that a client gets by joining the deltas. Content is null where only thoughts or calls were said (FORMATS R13)."""
    answer = ChoiceAnswer(0)
    content: list[str] = []
    reasoning: list[str] = []
    arguments: dict[int, list[str]] = {}
    calls: dict[int, CallAnswer] = {}
    said: list[Event] = []
    for delta in deltas:
        answer.index = delta.index
        answer.token_ids.extend(delta.token_ids)
        answer.sampled += delta.sampled
        if delta.reasoning_tokens is not None:
            answer.reasoning_tokens = (answer.reasoning_tokens or 0) + delta.reasoning_tokens
        if delta.logprobs is not None:
            answer.logprobs = [*(answer.logprobs or ()), *delta.logprobs]
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
        said.extend(delta.events)
    answer.events = join_pieces(said)
    for event in answer.events:
        if type(event) is Content:
            content.append(event.text)
        elif type(event) is Reasoning:
            reasoning.append(event.text)
        elif type(event) is ToolArguments:
            arguments[event.index].append(event.text)
        elif type(event) is ToolStart:
            calls[event.index] = CallAnswer(event.id or "", event.name)
            arguments[event.index] = []
        elif type(event) is ToolEnd:
            calls[event.index].status = event.status
    for index, call in calls.items():
        call.arguments = "".join(arguments[index])
    answer.tool_calls = list(calls.values())
    answer.reasoning = "".join(reasoning) or None
    answer.content = "".join(content) or (None if calls or answer.reasoning else "")
    return answer


def join_pieces(events: Iterable[Event]) -> list[Event]:
    """The same events, neighbouring pieces of one field joined."""
    joined: list[Event] = []
    for (kind, index), run in groupby(events, key=_field_of):
        if kind in (ToolStart, ToolEnd):
            joined.extend(run)
            continue
        text = "".join(one.text for one in run if isinstance(one, (Content, Reasoning, ToolArguments)))
        if kind is ToolArguments:
            joined.append(ToolArguments(index, text))
        else:
            joined.append(Content(text) if kind is Content else Reasoning(text))
    return joined


def _field_of(event: Event) -> tuple[type[Event], int]:
    return type(event), event.index if isinstance(event, (ToolStart, ToolArguments, ToolEnd)) else -1
