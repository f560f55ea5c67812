"""Every format through every dialect that shows parsed answers: recorded answers, streamed, are what the official clients read whole."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from attrs import evolve
from openai import omit
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from scaleout import parsers
from scaleout.core import AnswerHead, ChoiceDelta, Event, ToolStart
from scaleout.derender import fold
from scaleout.dialects import Dialect, chat, messages, responses
from tests.dialects.clients import read_anthropic_stream, read_openai_stream, valid_message, valid_response
from tests.dialects.said import USAGE, stream
from tests.parsers.answers import tools_of
from tests.parsers.recorded import PARITY, families, format_of, pieces_of, prompt_of, records

pytestmark = pytest.mark.skipif(not PARITY.is_dir(), reason="the recorded answers of ../shared/parity are absent")

Json = Any
ANSWERS = 8
"""Recorded answers of each family that are shown in each dialect: reading them strictly takes most of the time."""

HEAD = AnswerHead("chatcmpl-7", 1_700_000_000, "m")


def some_answers(family: str) -> list[dict[str, Any]]:
    """A few recorded answers, those with most in them first."""
    said = records(family)
    rich = sorted(said, key=lambda one: (-len(one["expected"]["tool_calls"]), one["expected"]["reasoning"] is None))
    return rich[: ANSWERS // 2] + random.Random(family).sample(said, ANSWERS // 2)


def deltas_of(record: dict[str, Any]) -> list[ChoiceDelta]:
    """The record's answer, a delta for each of its tokens."""
    format = format_of(record["family"])
    state = parsers.begin(format, prompt_of(record), tools=tools_of(record))
    deltas = []
    for piece in pieces_of(record):
        state, events = parsers.feed(format, state, [piece])
        deltas.append(ChoiceDelta(0, with_ids(events)))
    return [*deltas, ChoiceDelta(0, with_ids(parsers.finish(format, state)), finish_reason=record["finish"])]


def with_ids(events: Iterable[Event]) -> list[Event]:
    return [
        evolve(event, id=f"call_{event.index}") if isinstance(event, ToolStart) and event.id is None else event
        for event in events
    ]


def chat_reads_alike(whole: Json, chunks: list[Json]) -> None:
    state: Any = ChatCompletionStreamState(input_tools=omit, response_format=omit)
    for one in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(one))
    joined = state.current_completion_snapshot.choices[0]
    (read,) = ChatCompletion.model_validate(whole).choices
    calls = [(call.id, call.function.name, call.function.arguments) for call in read.message.tool_calls or ()]  # type: ignore[union-attr]
    assert [(c.id, c.function.name, c.function.arguments) for c in joined.message.tool_calls or ()] == calls
    assert (joined.message.content or None) == (read.message.content or None)
    assert (joined.message.reasoning or None) == (read.message.reasoning or None)  # type: ignore[attr-defined]
    assert joined.finish_reason == read.finish_reason


def messages_read_alike(whole: Json, events: list[Json]) -> None:
    joined, read = read_anthropic_stream(events), valid_message(whole)
    broken = [one for one in whole["content"] if one["type"] == "tool_use" and set(one["input"]) == {"INVALID_JSON"}]
    # A call that was cut is no JSON yet: the stream has its text, the whole answer says so in the API's own way.
    if not broken:
        assert joined == read
    assert [block.type for block in joined.content] == [block.type for block in read.content]


def responses_read_alike(whole: Json, events: list[Json]) -> None:
    joined, last = read_openai_stream(events)
    read = valid_response(whole)
    assert last.output == read.output
    assert last.status == read.status
    assert joined.output_text == read.output_text


READERS = {chat: chat_reads_alike, messages: messages_read_alike, responses: responses_read_alike}
PARSED: list[Dialect] = list(READERS)


@pytest.mark.parametrize("dialect", PARSED, ids=lambda dialect: dialect.NAME)
@pytest.mark.parametrize("family", families())
def test_recorded_answers_read_alike_streamed_and_whole(family: str, dialect: Dialect) -> None:
    """The official client joins the stream to what it reads of the whole answer."""
    for record in some_answers(family):
        deltas = deltas_of(record)
        whole = dialect.response(HEAD, None, [fold(deltas)], USAGE)
        READERS[dialect](whole, stream(dialect, HEAD, None, deltas, dialect.gather(None)))
