"""The law of every dialect: the chunks of an answer, joined, are the answer; and it does not matter how it was cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import (
    AnswerHead,
    ChatRequest,
    ChoiceDelta,
    CompletionRequest,
    Content,
    Event,
    Message,
    RequestOptions,
    ToolArguments,
    ToolEnd,
    ToolStart,
)
from scaleout.derender import fold
from scaleout.dialects import DIALECTS, Dialect, chat, completions, messages, responses
from scaleout.dialects.messages_answer import NOT_JSON, read_input
from scaleout.errors import BadState

from .clients import read_anthropic_stream, read_openai_stream, valid_message, valid_response
from .said import USAGE, answers, deltas, stream

Json = Any
HEAD = AnswerHead("chatcmpl-7", 1_700_000_000, "m")
RESPONSE_HEAD = AnswerHead("resp_7", 1_700_000_000, "m")
CHAT = ChatRequest([Message("user", "hi")], options=RequestOptions(return_token_ids=True))
RESPONSES = responses.parse(
    {
        "input": "hi",
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "include": ["message.output_text.logprobs"],
        "tools": [
            {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False},
            {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False},
            {"type": "custom", "name": "shell"},
            {"type": "namespace", "name": "maps", "description": "", "tools": [{"type": "function", "name": "find"}]},
        ],
    }
)

any_deltas = answers().flatmap(lambda events: deltas(events, logprobs=True))


# ---------------------------------------------------------------------------------------------- chat and completions


@given(any_deltas)
def test_chat_chunks_joined_are_the_answer(said: list[ChoiceDelta]) -> None:
    whole = chat.response(HEAD, CHAT, [fold(said)], USAGE)
    *chunks, last = stream(chat, HEAD, CHAT, said)
    (expected,) = whole["choices"]
    joined: dict[str, Json] = {"content": None, "reasoning": None}
    calls: dict[int, Json] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        for name in joined:
            if choice["delta"][name] is not None:
                joined[name] = (joined[name] or "") + choice["delta"][name]
        for piece in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"id": None, "function": {"name": None, "arguments": ""}})
            if "id" in piece:
                call |= {"id": piece["id"], "type": piece["type"]}
                call["function"]["name"] = piece["function"]["name"]
            call["function"]["arguments"] += piece["function"]["arguments"]
    assert joined["reasoning"] == expected["message"]["reasoning"]
    assert (joined["content"] or None) == (expected["message"]["content"] or None)
    assert list(calls.values()) == expected["message"].get("tool_calls", [])
    assert [c["choices"][0]["delta"]["role"] for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    for name in ("finish_reason", "stop_reason"):
        assert chunks[-1]["choices"][0][name] == expected[name]
        assert all(chunk["choices"][0][name] is None for chunk in chunks[:-1])
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == expected["token_ids"]
    assert [p for c in chunks for p in c["choices"][0]["logprobs"]["content"]] == expected["logprobs"]["content"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)


@given(any_deltas)
def test_a_call_is_named_in_its_first_piece_only(said: list[ChoiceDelta]) -> None:
    seen: set[int] = set()
    for chunk in stream(chat, HEAD, CHAT, said)[:-1]:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            assert ("id" in piece) == ("type" in piece) == ("name" in piece["function"]) == (piece["index"] not in seen)
            seen.add(piece["index"])


@given(answers(tools=False).flatmap(lambda events: deltas(events, logprobs=True)))
def test_completion_chunks_joined_are_the_answer(said: list[ChoiceDelta]) -> None:
    request = CompletionRequest(["x"], options=RequestOptions(return_token_ids=True))
    whole = completions.response(HEAD, request, [fold(said)], USAGE)
    *chunks, last = stream(completions, HEAD, request, said)
    (expected,) = whole["choices"]
    own = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in own) == expected["text"]
    assert [i for choice in own for i in choice["token_ids"]] == expected["token_ids"]
    for name in expected["logprobs"]:
        assert [one for choice in own for one in choice["logprobs"][name]] == expected["logprobs"][name]
    assert (own[-1]["finish_reason"], own[-1]["stop_reason"]) == (expected["finish_reason"], expected["stop_reason"])
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


# ---------------------------------------------------------------------------------------------- messages


@given(answers(damaged=False).flatmap(deltas))
def test_message_events_joined_by_the_official_client_are_the_answer(said: list[ChoiceDelta]) -> None:
    whole = messages.response(HEAD, CHAT, [fold(said)], USAGE)
    assert read_anthropic_stream(stream(messages, HEAD, CHAT, said)) == valid_message(whole)


@given(answers().flatmap(deltas))
def test_message_blocks_keep_every_word_in_order(said: list[ChoiceDelta]) -> None:
    """Broken arguments too: the stream hands them on as they are, the whole answer keeps them under a name of its own."""
    answer = fold(said)
    whole = messages.response(HEAD, CHAT, [answer], USAGE)
    blocks: list[Json] = []
    for event in stream(messages, HEAD, CHAT, said):
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"]})
            blocks[-1].pop("input", None)
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            (kind, (name, text)) = event["delta"]["type"], list(event["delta"].items())[1]
            blocks[-1][name] = blocks[-1].get(name, "") + text
            assert kind in ("text_delta", "thinking_delta", "signature_delta", "input_json_delta")
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = read_input(block.pop("partial_json", ""))
    assert blocks == whole["content"]
    for call, block in zip(answer.tool_calls, [b for b in blocks if b["type"] == "tool_use"], strict=True):
        assert (block["input"] == {NOT_JSON: call.arguments}) == (call.status != "ok")
    said_content = "".join(b["text"] for b in blocks if b["type"] == "text")
    assert said_content == (answer.content or "")
    assert "".join(b["thinking"] for b in blocks if b["type"] == "thinking") == (answer.reasoning or "")


@given(answers().flatmap(deltas))
def test_message_events_open_and_close_one_block_at_a_time(said: list[ChoiceDelta]) -> None:
    kinds = [event["type"] for event in stream(messages, HEAD, CHAT, said)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    inner = [kind.removeprefix("content_block_") for kind in kinds[1:-2] if kind != "content_block_delta"]
    assert inner == ["start", "stop"] * (len(inner) // 2)
    open_now = False
    for kind in kinds[1:-2]:
        assert open_now == (kind != "content_block_start")
        open_now = kind != "content_block_stop"


# ---------------------------------------------------------------------------------------------- responses


@given(answers().flatmap(deltas))
def test_response_events_gathered_end_with_the_answer(said: list[ChoiceDelta]) -> None:
    whole = responses.response(RESPONSE_HEAD, RESPONSES, [fold(said)], USAGE)
    events = stream(responses, RESPONSE_HEAD, RESPONSES, said, responses.gather(RESPONSES))
    assert events[-1]["response"] == whole
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == whole["output"]


@given(any_deltas)
def test_the_official_client_joins_response_events_to_the_answer(said: list[ChoiceDelta]) -> None:
    whole = valid_response(responses.response(RESPONSE_HEAD, RESPONSES, [fold(said)], USAGE))
    events = stream(responses, RESPONSE_HEAD, RESPONSES, said, responses.gather(RESPONSES))
    snapshot, final = read_openai_stream(events)
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert snapshot.output_text == whole.output_text
    said_calls = [item.arguments for item in snapshot.output if item.type == "function_call"]
    assert said_calls == [item.arguments for item in whole.output if item.type == "function_call"]


@given(any_deltas)
def test_response_texts_carry_the_logprobs_of_visible_tokens(said: list[ChoiceDelta]) -> None:
    visible = [p.sampled.token for delta in said for p in delta.logprobs or () if p.region == "content"]
    whole = responses.response(RESPONSE_HEAD, RESPONSES, [fold(said)], USAGE)
    events = stream(responses, RESPONSE_HEAD, RESPONSES, said, responses.gather(RESPONSES))
    for output in (whole["output"], events[-1]["response"]["output"]):
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        assert [one["token"] for part in parts for one in part["logprobs"]] == visible


@given(any_deltas)
def test_without_gathering_nothing_but_repetition_is_missing(said: list[ChoiceDelta]) -> None:
    """What a caller gets who derenders chunk by chunk: the same events, less what they repeat; gathering them later is as good."""
    bare = stream(responses, RESPONSE_HEAD, RESPONSES, said)
    complete = responses.gather(RESPONSES)
    assert complete is not None
    events = stream(responses, RESPONSE_HEAD, RESPONSES, said, responses.gather(RESPONSES))
    assert [(e["type"], e.get("delta")) for e in bare] == [(e["type"], e.get("delta")) for e in events]
    assert complete(bare) == events
    read_openai_stream(bare)


# ---------------------------------------------------------------------------------------------- all


@given(st.data())
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_the_answer_does_not_depend_on_the_cut(dialect: Dialect, data: st.DataObject) -> None:
    events = data.draw(answers())
    request = RESPONSES if dialect is responses else CHAT
    one, other = (fold(data.draw(deltas(events))) for _ in range(2))
    other.finish_reason, other.stop_reason = one.finish_reason, one.stop_reason
    assert dialect.response(HEAD, request, [one], USAGE) == dialect.response(HEAD, request, [other], USAGE)


def long_answer(words: int) -> list[Event]:
    arguments = [ToolArguments(0, "1,")] * words
    return [Content("word ")] * words + [ToolStart(0, "c", "get_weather"), *arguments, ToolEnd(0, "malformed")]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_what_a_stream_carries_does_not_grow(dialect: Dialect) -> None:
    carry = dialect.open_stream(RESPONSES)
    sizes = []
    for event in long_answer(1000):
        carry, _ = dialect.chunk(HEAD, carry, ChoiceDelta(0, [event], [1]), None)
        sizes.append(len(json.dumps(carry)))
    assert max(sizes) < 256


@pytest.mark.parametrize("dialect", [messages, responses], ids=lambda dialect: dialect.NAME)
def test_a_stream_is_over_once(dialect: Dialect) -> None:
    carry = dialect.open_stream(RESPONSES)
    carry, _ = dialect.chunk(HEAD, carry, ChoiceDelta(0, [Content("x")], [1], finish_reason="stop"), None)
    carry, last = dialect.chunk(HEAD, carry, None, USAGE)
    assert last
    assert dialect.chunk(HEAD, carry, None, USAGE) == (carry, [])
    assert dialect.chunk(HEAD, carry, ChoiceDelta(0, [Content("y")], [2]), None) == (carry, [])


wild = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**63) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_a_damaged_carry_is_refused_or_harmless(dialect: Dialect, data: st.DataObject) -> None:
    """It comes from a client: whatever it holds, the answer is events or a 400."""
    carry = dialect.open_stream(RESPONSES)
    carry, _ = dialect.chunk(HEAD, carry, ChoiceDelta(0, long_answer(1)[:2], [1]), None)
    spoiled = dict(carry)
    for key in data.draw(st.sets(st.sampled_from([*carry, "call", "input", "names", "ids", "role", "n", "at", "end"]))):
        value = spoiled.get(key)
        if isinstance(value, list) and value and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(value) - 1))
            spoiled[key] = [*value[:at], data.draw(wild), *value[at + 1 :]]
        else:
            spoiled[key] = data.draw(wild)
    sequence: Sequence[ChoiceDelta | None] = (
        ChoiceDelta(0, [Content("x"), ToolArguments(0, '{"in'), ToolEnd(0, "ok")], [1]),
        ChoiceDelta(0, [ToolStart(1, "c", "shell"), ToolArguments(1, '{"input": "\\')], [1], finish_reason="stop"),
        None,
    )
    with suppress(BadState):
        for delta in sequence:
            spoiled, events = dialect.chunk(HEAD, spoiled, delta, None)
            json.dumps(events)
