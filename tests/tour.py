"""What users of the official clients do with a server, step by step, and a transcript of what they were told.

The same tour runs against every kind of server: one process, a front end with engines elsewhere, the reference peer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anthropic
import openai
from attrs import field, frozen

Json = Any
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Bergen"]}, "snow": {"type": "boolean"}},
    "required": ["city", "snow"],
    "additionalProperties": False,
}
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "enum": [17]}, "b": {"type": "integer", "enum": [25]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@frozen
class World:
    """What is said on a tour, which depends on who listens. `thinks`: the server's model thinks before it answers."""

    model: str = "m"
    greeting: str = "What is the capital of France?"
    ask_for_city: str = "Name a city as JSON."
    ask_for_sum: str = "What is 17 plus 25?"
    must_call: bool = True
    thinks: bool = False
    limit: int = 24
    sampling: Mapping[str, Any] = field(factory=lambda: {"temperature": 0})


class Tour:
    """A visitor with both official clients."""

    def __init__(self, url: str, world: World) -> None:
        self.world = world
        self.gpt = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        self.claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)

    def close(self) -> None:
        self.gpt.close()
        self.claude.close()

    def chat(self) -> Json:
        """A question, whole and streamed: the stream joins to the answer."""
        asked: dict[str, Any] = {
            "model": self.world.model,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": self.world.greeting}],
            "max_tokens": self.world.limit,
            **self.world.sampling,
        }
        whole = self.gpt.chat.completions.create(**asked)
        chunks = list(self.gpt.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        said = [c.choices[0].delta for c in chunks if c.choices]
        assert "".join(one.content or "" for one in said) == (whole.choices[0].message.content or "")
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
        return {"whole": told(whole), "stream": [told(chunk) for chunk in chunks]}

    def completion(self) -> Json:
        answer = self.gpt.completions.create(
            model=self.world.model,
            prompt=self.world.greeting,
            max_tokens=self.world.limit,
            logprobs=1,
            stop=["\n\n"],
            **self.world.sampling,
        )
        return told(answer)

    def tool_loop(self) -> Json:
        """The model calls a tool; its result goes back; the model answers."""
        tools: Any = [
            {
                "type": "function",
                "function": {"name": "add", "description": "a + b", "parameters": NUMBERS, "strict": True},
            }
        ]
        messages: list[Any] = [{"role": "user", "content": self.world.ask_for_sum}]
        first = self.gpt.chat.completions.create(
            model=self.world.model,
            messages=messages,
            tools=tools,
            tool_choice="required" if self.world.must_call else "auto",
            max_tokens=200,
            **self.world.sampling,
        )
        assert first.choices[0].finish_reason == "tool_calls"
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        for call in first.choices[0].message.tool_calls or ():
            assert call.type == "function"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)})
        second = self.gpt.chat.completions.create(
            model=self.world.model,
            messages=messages,
            tools=tools,
            tool_choice="none",
            max_tokens=self.world.limit,
            **self.world.sampling,
        )
        assert second.choices[0].message.content
        return [told(first), told(second)]

    def json_schema(self) -> Json:
        answer = self.gpt.chat.completions.create(
            model=self.world.model,
            messages=[{"role": "user", "content": self.world.ask_for_city}],
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}},
            max_tokens=100,
            **self.world.sampling,
        )
        assert set(json.loads(answer.choices[0].message.content or "")) == {"city", "snow"}
        return told(answer)

    def responses(self) -> Json:
        """A response, asked for again, and a second one that goes on from it, streamed."""
        first = self.gpt.responses.create(
            model=self.world.model,
            input=self.world.greeting,
            max_output_tokens=self.world.limit,
            **self.world.sampling,
        )
        again = self.gpt.responses.retrieve(first.id)
        assert told(again) == told(first)
        with self.gpt.responses.stream(
            model=self.world.model,
            input="And of Norway?",
            previous_response_id=first.id,
            max_output_tokens=self.world.limit,
            **self.world.sampling,
        ) as stream:
            kinds = [event.type for event in stream]
            second = stream.get_final_response()
        assert second.previous_response_id == first.id
        assert kinds[0] == "response.created"
        return {"first": told(first), "second": told(second), "kinds": kinds}

    def response_tool_loop(self) -> Json:
        tools: Any = [{"type": "function", "name": "add", "parameters": NUMBERS, "strict": True}]
        first = self.gpt.responses.create(
            model=self.world.model,
            input=self.world.ask_for_sum,
            tools=tools,
            tool_choice="required" if self.world.must_call else "auto",
            max_output_tokens=200,
            **self.world.sampling,
        )
        outputs: list[Any] = [
            {"type": "function_call_output", "call_id": item.call_id, "output": add(item.arguments)}
            for item in first.output
            if item.type == "function_call"
        ]
        assert outputs
        second = self.gpt.responses.create(
            model=self.world.model,
            input=outputs,
            previous_response_id=first.id,
            max_output_tokens=self.world.limit,
            **self.world.sampling,
        )
        assert second.output_text
        return [told(first), told(second)]

    def message(self) -> Json:
        """A message, whole and streamed, and how long its prompt is before anybody asks for it."""
        asked: dict[str, Any] = {
            "model": self.world.model,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": self.world.greeting}],
        }
        counted = self.claude.messages.count_tokens(**asked)
        asked |= {"max_tokens": self.world.limit, "extra_body": dict(self.world.sampling)}
        whole = self.claude.messages.create(**asked)
        with self.claude.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            joined = stream.get_final_message()
        assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) == counted.input_tokens
        assert [one.model_dump(exclude={"signature", "parsed_output"}) for one in joined.content] == [
            one.model_dump(exclude={"signature", "parsed_output"}) for one in whole.content
        ]
        return {"counted": counted.input_tokens, "whole": told(whole), "kinds": kinds}

    def message_tool_loop(self) -> Json:
        """Thoughts, where the model has some, and a tool that is used; both go back with the result."""
        tools: Any = [{"name": "add", "description": "a + b", "input_schema": NUMBERS, "strict": True}]
        messages: list[Any] = [{"role": "user", "content": self.world.ask_for_sum}]
        thinking: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if self.world.thinks else {}
        first = self.claude.messages.create(
            model=self.world.model,
            messages=messages,
            tools=tools,
            tool_choice={"type": "any" if self.world.must_call else "auto"},
            max_tokens=1200 if self.world.thinks else 200,
            **thinking,
            extra_body=dict(self.world.sampling),
        )
        assert first.stop_reason == "tool_use"
        kinds = [block.type for block in first.content]
        assert ("thinking" in kinds) == self.world.thinks
        messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": add(json.dumps(block.input))}
            for block in first.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
        second = self.claude.messages.create(
            model=self.world.model, messages=messages, max_tokens=self.world.limit, extra_body=dict(self.world.sampling)
        )
        assert any(block.type == "text" and block.text for block in second.content)
        return [told(first), told(second)]

    def mistakes(self) -> Json:
        """What is wrong is said in the words of each API."""
        found = []
        for ask in (
            lambda: self.gpt.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}]),
            lambda: self.gpt.chat.completions.create(model=self.world.model, messages=[]),
            lambda: self.gpt.responses.retrieve("resp_none"),
            lambda: self.claude.messages.create(
                model="other", max_tokens=1, messages=[{"role": "user", "content": "x"}]
            ),
        ):
            try:
                ask()
            except (openai.APIStatusError, anthropic.APIStatusError) as error:
                found.append([type(error).__name__, error.status_code])
        return found


STEPS: Mapping[str, Callable[[Tour], Json]] = {
    step.__name__: step
    for step in (
        Tour.chat,
        Tour.completion,
        Tour.tool_loop,
        Tour.json_schema,
        Tour.responses,
        Tour.response_tool_loop,
        Tour.message,
        Tour.message_tool_loop,
        Tour.mistakes,
    )
}


def add(arguments: str) -> str:
    """The tool."""
    given = json.loads(arguments)
    return str(given["a"] + given["b"])


def go(url: str, world: World) -> dict[str, Json]:
    """The whole tour."""
    tour = Tour(url, world)
    try:
        return {name: step(tour) for name, step in STEPS.items()}
    finally:
        tour.close()


NAMES_OF_ONE_ANSWER = frozenset(
    (
        "id",
        "created",
        "created_at",
        "completed_at",
        "item_id",
        "call_id",
        "tool_call_id",
        "previous_response_id",
        "signature",
    )
)


def told(answer: Any) -> Json:
    """An answer as JSON, without what names this one answer and nothing else."""
    return without_names(answer.model_dump(mode="json"))


def without_names(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: without_names(one) for key, one in value.items() if key not in NAMES_OF_ONE_ANSWER}
    return [without_names(one) for one in value] if isinstance(value, list) else value
