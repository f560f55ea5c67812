"""Requests of all dialects, and how to compare the answers of two servers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from serving import Server

Json = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@frozen
class Wish:
    """One request. `needs`: what not every wire to an engine can say."""

    name: str
    path: str
    body: Json
    needs: frozenset[str] = frozenset()


def talk(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}


CALL = 'Say <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> now'
WISHES: Sequence[Wish] = (
    Wish("chat", CHAT, {**talk("What is 2+2? naïve 🙂 日本"), "max_tokens": 40}),
    Wish("logprobs", CHAT, {**talk("Say something."), "max_tokens": 9, "logprobs": True, "top_logprobs": 3}),
    Wish("sampled logprob alone", CHAT, {**talk("Say so."), "max_tokens": 9, "logprobs": True, "top_logprobs": 0}),
    Wish("ids", CHAT, {**talk("Count to five."), "max_tokens": 12, "return_token_ids": True}),
    Wish("stop string", CHAT, {**talk("Count to nine."), "max_tokens": 40, "stop": ["nine"]}),
    Wish("stop id", CHAT, {**talk("Count to nine."), "max_tokens": 40, "stop_token_ids": [281]}),
    Wish("tools", CHAT, {**talk(CALL), "max_tokens": 60, "tools": [TOOL]}),
    Wish("thinking", CHAT, {**talk("<think>so</think> it is"), "max_tokens": 40}),
    Wish(
        "three choices",
        CHAT,
        {**talk("A word?"), "max_tokens": 8, "temperature": 1, "seed": 7, "n": 3},
        frozenset({"n"}),
    ),
    Wish("completion", COMPLETIONS, {"prompt": "The capital of France is", "max_tokens": 12}),
    Wish("completion of ids", COMPLETIONS, {"prompt": [504, 4345], "max_tokens": 8}),
    Wish("two completions", COMPLETIONS, {"prompt": ["One two", "Three four"], "max_tokens": 4, "logprobs": 2}),
    Wish(
        "completion with echo",
        COMPLETIONS,
        {"prompt": "One two", "max_tokens": 4, "echo": True, "logprobs": 2},
        frozenset({"prompt logprobs"}),
    ),
    Wish("message", MESSAGES, {**talk("Hello there"), "max_tokens": 20}),
    Wish(
        "message with tools",
        MESSAGES,
        {**talk(CALL), "max_tokens": 60, "tools": [{"name": "add", "input_schema": {"type": "object"}}]},
    ),
    Wish("response", RESPONSES, {"input": "Hello there", "max_output_tokens": 20, "store": False}),
)
BY_NAME = {wish.name: wish for wish in WISHES}


def ask(server: Server, wish: Wish, stream: bool) -> list[str]:
    """The answer as comparable lines: one, or one for each event."""
    body = {"model": "m", "temperature": 0, **wish.body, "stream": stream}
    if stream and wish.path in (CHAT, COMPLETIONS) and "stop" not in wish.body:
        body["stream_options"] = {"include_usage": True}
    answer = server.post(wish.path, body, {"X-Request-Id": "same"})
    assert answer.status == 200, answer.body
    if not stream:
        return [comparable(answer.body.decode())]
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    return [comparable(event) for event in answer.body.decode().split("\n\n") if event]


def comparable(text: str) -> str:
    """Without times, and without ids that are made anew for each answer."""
    text = re.sub(r'"(created|created_at|completed_at)": ?\d+', r'"\1":0', text)
    return re.sub(r'"(msg|rs|fc|resp|call|toolu|chatcmpl|cmpl)[-_][0-9a-f-]{16,}(_\d+)?"', r'"\1_"', text)


def by_choice(events: Sequence[str]) -> dict[Any, list[str]]:
    """Events of a stream for each choice: those of different choices come in any order."""
    found: dict[Any, list[str]] = {}
    for event in events:
        data = event.partition("data: ")[2]
        parsed = json.loads(data) if data.startswith("{") else {}
        choices = parsed.get("choices") or [{}]
        found.setdefault(choices[0].get("index"), []).append(event)
    return found


def joined(events: Sequence[str]) -> list[Any]:
    """Everything that a stream says, however its engine's tokens were gathered into events: texts, ends, usage."""
    texts: dict[str, str] = {}
    rest: list[Any] = []
    for event in events:
        data = event.partition("data: ")[2]
        parsed = json.loads(data) if data.startswith("{") else {}
        for choice in parsed.get("choices") or ():
            name = f"choice {choice['index']}"
            texts[name] = texts.get(name, "") + ((choice.get("delta") or {}).get("content") or choice.get("text") or "")
            if choice["finish_reason"]:
                rest.append([name, choice["finish_reason"], choice["stop_reason"]])
        delta = parsed.get("delta")
        if delta is not None:
            text = delta if isinstance(delta, str) else delta.get("text") or ""
            texts["text"] = texts.get("text", "") + text
        if parsed.get("usage"):
            rest.append(parsed["usage"])
    return [texts, sorted(rest, key=json.dumps)]
