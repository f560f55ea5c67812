"""For who holds a whole stream in memory: fills in what its events repeat of the answer and of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from scaleout.core import Json
from scaleout.dialects.dialect import Gather, Request
from scaleout.dialects.responses_answer import echo_of, reasoning_part, text_part

_TEXT_KEYS = {
    "response.output_text.done": "text",
    "response.reasoning_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}


def gather(request: Request | None) -> Gather:
    """Events of one response, in order → the same events, complete. The last one holds the whole response."""
    return _Gathered(echo_of(request)).complete


@define
class _Gathered:
    """A response so far. `said` and `logprobs` are of the item that is open; a stream has one open at a time."""

    echo: Mapping[str, Json]
    output: list[Json] = field(factory=list)
    said: list[str] = field(factory=list)
    logprobs: list[Json] = field(factory=list)

    def complete(self, events: Sequence[Json]) -> list[Json]:
        return [self._complete(event) for event in events]

    def _complete(self, event: Json) -> Json:
        name: str = event["type"]
        if "response" in event:
            output = self.output if name in ("response.completed", "response.incomplete") else []
            return {**event, "response": {**event["response"], **self.echo, "output": output}}
        if name == "response.output_item.added":
            self.said, self.logprobs = [], []
        elif name.endswith(".delta"):
            self.said.append(event["delta"])
            self.logprobs += event.get("logprobs", ())
        elif name in _TEXT_KEYS:
            spoken = {**event, _TEXT_KEYS[name]: "".join(self.said)}
            return {**spoken, "logprobs": self.logprobs} if "logprobs" in event else spoken
        elif name == "response.content_part.done":
            return {**event, "part": self._fill_part(event["part"])}
        elif name == "response.output_item.done":
            item = self._fill_item(event["item"])
            self.output.append(item)
            return {**event, "item": item}
        return event

    def _fill_part(self, part: Json) -> Json:
        filled = {**part, "text": "".join(self.said)}
        return {**filled, "logprobs": self.logprobs} if "logprobs" in part else filled

    def _fill_item(self, item: Json) -> Json:
        text = "".join(self.said)
        match item["type"]:
            case "message":
                return {**item, "content": [self._fill_part(text_part("", []))]}
            case "reasoning":
                return {**item, "content": [reasoning_part(text)]}
            case "custom_tool_call":
                return {**item, "input": text}
            case _:
                return {**item, "arguments": text}
