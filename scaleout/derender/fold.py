"""All deltas of one choice → its whole answer."""

from __future__ import annotations

from collections.abc import Iterable

from scaleout.core import CallAnswer, ChoiceAnswer, ChoiceDelta, Content, Reasoning, ToolArguments, ToolEnd, ToolStart


def fold(deltas: Iterable[ChoiceDelta]) -> ChoiceAnswer:
    """The answer that a client gets by joining the deltas. Content is null where only thoughts or calls were said (FORMATS R13)."""
    answer = ChoiceAnswer(0)
    content: list[str] = []
    reasoning: list[str] = []
    arguments: dict[int, list[str]] = {}
    calls: dict[int, CallAnswer] = {}
    for delta in deltas:
        answer.index = delta.index
        answer.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            answer.logprobs = [*(answer.logprobs or ()), *delta.logprobs]
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
        for event in delta.events:
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
