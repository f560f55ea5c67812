"""How the tests run a parser: pieces in any cut, the state through JSON, and the events folded into one answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from scaleout import parsers
from scaleout.core import Content, Event, Json, Piece, Reasoning, Tool, ToolArguments, ToolEnd, ToolStart
from scaleout.parsers import Format, ParserState


@define
class Call:
    name: str
    arguments: str = ""
    status: str | None = None
    id: str | None = None


@define
class Answer:
    """Everything that the events said. Adding to it checks that they come in an order that makes sense."""

    reasoning: str | None = None
    content: str | None = None
    calls: list[Call] = field(factory=list)

    def add(self, events: Iterable[Event]) -> Answer:
        for event in events:
            match event:
                case Reasoning(text):
                    assert text
                    self.reasoning = (self.reasoning or "") + text
                case Content(text):
                    assert text
                    self.content = (self.content or "") + text
                case ToolStart(index, id, name):
                    assert index == len(self.calls)
                    assert not self.calls or self.calls[-1].status is not None
                    self.calls.append(Call(name, id=id))
                case ToolArguments(index, text):
                    assert text
                    assert index == len(self.calls) - 1
                    assert self.calls[index].status is None
                    self.calls[index].arguments += text
                case ToolEnd(index, status):
                    assert index == len(self.calls) - 1
                    assert self.calls[index].status is None
                    self.calls[index].status = status
        return self

    def message(self) -> dict[str, Json]:
        """The answer as the recorded answers write it."""
        calls = []
        for call in self.calls:
            one = {"name": call.name, "arguments": call.arguments, "status": call.status}
            calls.append(one | ({"id": call.id} if call.id is not None else {}))
        content = self.content
        if content is None and self.reasoning is None and not calls:
            content = ""
        return {"reasoning": self.reasoning, "content": content, "tool_calls": calls}


def through_json(format: Format, state: ParserState) -> ParserState:
    return parsers.load_state(format, json.loads(json.dumps(parsers.dump_state(state))))


def parse(format: Format, state: ParserState, chunks: Iterable[Sequence[Piece]], *, as_json: bool = False) -> Answer:
    """Feed the chunks, finish, fold. With `as_json` the state goes through JSON after every chunk."""
    answer = Answer()
    for chunk in chunks:
        state, events = parsers.feed(format, state, chunk)
        answer.add(events)
        if as_json:
            state = through_json(format, state)
    return answer.add(parsers.finish(format, state))


def check_stream(format: Format, state: ParserState, pieces: list[Piece], whole: Answer) -> None:
    """One piece at a time: every prefix is a prefix of the whole, and the state holds no more than it must."""
    so_far = Answer()
    for piece in pieces:
        before = parsers.dump_state(state)
        after, events = parsers.feed(format, state, [piece])
        assert parsers.dump_state(state) == before, "feeding changed the state it was given"
        state = after
        assert parsers.dump_state(through_json(format, state)) == parsers.dump_state(state)
        region = format.tables[state.calls][state.region]
        assert state.call is not None or len(state.held.strip()) < region.find.longest  # type: ignore[union-attr]
        _check_prefix(so_far.add(events), whole)
    assert so_far.add(parsers.finish(format, state)) == whole


def _check_prefix(now: Answer, then: Answer) -> None:
    assert (then.reasoning or "").startswith(now.reasoning or "")
    assert (then.content or "").startswith(now.content or "")
    assert len(now.calls) <= len(then.calls)
    for one, other in zip(now.calls, then.calls, strict=False):
        assert (one.name, one.id) == (other.name, other.id)
        assert other.arguments.startswith(one.arguments)
        assert one.status in (None, other.status)


def split_at_tokens(text: str, tokens: Iterable[str], special: Iterable[str] = ()) -> list[Piece]:
    """Text as pieces, every occurrence of a token being that token."""
    marked = set(tokens)
    flagged = set(special)
    pattern = "|".join(map(re.escape, sorted(marked, key=len, reverse=True)))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    return [Piece(part, n % 2 == 1, n % 2 == 1 and part in flagged) for n, part in enumerate(parts) if part]


def tools_of(record: dict[str, Any]) -> list[Tool]:
    functions = [tool.get("function", tool) for tool in record.get("tools") or ()]
    return [Tool(f["name"], f.get("description"), f.get("parameters")) for f in functions]
