"""What answers look like on the wire, field by field, where a law does not say it."""

from __future__ import annotations

from typing import Any

import pytest

from scaleout.core import (
    AnswerHead,
    CallAnswer,
    ChatRequest,
    ChoiceAnswer,
    ChoiceDelta,
    CompletionRequest,
    Content,
    DecodedLogprob,
    DecodedPosition,
    Message,
    Reasoning,
    RequestOptions,
    ToolArguments,
    ToolEnd,
    ToolStart,
    Usage,
)
from scaleout.dialects import DIALECTS, Dialect, chat, completions, messages, responses
from scaleout.dialects.messages_answer import NOT_JSON, read_input

from .clients import valid_message, valid_response

Json = Any
HEAD = AnswerHead("chatcmpl-7", 1_700_000_000, "m", prompt_token_ids=[1, 2, 3], kv_transfer_params={"a": 1})
RESPONSE_HEAD = AnswerHead("resp_7", 1_700_000_000, "m")
SHOW_IDS = RequestOptions(return_token_ids=True)
USAGE = Usage(11, 7, cached_tokens=4, reasoning_tokens=2)
POSITION = DecodedPosition(
    DecodedLogprob(5, "é", -0.5, "é".encode()),
    [DecodedLogprob(5, "é", -0.5, "é".encode()), DecodedLogprob(9, "", -2.0, None)],
    3,
)


def answer(**more: Any) -> ChoiceAnswer:
    return ChoiceAnswer(**{"index": 0, "content": "Hi", "finish_reason": "stop", "token_ids": [5, 6], **more})


# ---------------------------------------------------------------------------------------------- chat and completions


def test_a_chat_completion() -> None:
    given = answer(reasoning="Hm.", tool_calls=[CallAnswer("c1", "f", "{}", "ok")], logprobs=[POSITION])
    wire = chat.response(HEAD, ChatRequest([Message("user", "x")], options=SHOW_IDS), [given], USAGE)
    assert wire == {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": "Hm.",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                "logprobs": {
                    "content": [
                        {
                            "token": "é",
                            "logprob": -0.5,
                            "bytes": [195, 169],
                            "top_logprobs": [
                                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                                {"token": "", "logprob": -2.0, "bytes": None},
                            ],
                        }
                    ]
                },
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": [5, 6],
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": 11,
            "total_tokens": 18,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        "prompt_logprobs": None,
        "prompt_token_ids": [1, 2, 3],
        "prompt_text": None,
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_chat_shows_no_calls_and_no_ids_where_there_are_none() -> None:
    wire = chat.response(HEAD, None, [answer(content=None)], USAGE)
    (choice,) = wire["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] is None
    assert (choice["token_ids"], choice["logprobs"], wire["prompt_token_ids"]) == (None, None, None)


def test_a_text_completion() -> None:
    given = answer(logprobs=[POSITION, POSITION], prompt_token_ids=[1, 2], prompt_logprobs=[None])
    wire = completions.response(HEAD, CompletionRequest(["x"], options=SHOW_IDS), [given], USAGE)
    assert wire["object"] == "text_completion"
    assert wire["choices"] == [
        {
            "index": 0,
            "text": "Hi",
            "logprobs": {
                "text_offset": [3, 3],
                "token_logprobs": [-0.5, -0.5],
                "tokens": ["é", "é"],
                "top_logprobs": [{"é": -0.5, "": -2.0}] * 2,
            },
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [5, 6],
            "prompt_logprobs": [None],
            "prompt_token_ids": [1, 2],
            "routed_experts": None,
        }
    ]


@pytest.mark.parametrize("dialect", [chat, completions], ids=lambda dialect: dialect.NAME)
def test_ids_of_the_prompt_come_with_the_first_chunk_only(dialect: Dialect) -> None:
    request = ChatRequest([Message("user", "x")], options=SHOW_IDS)
    carry = dialect.open_stream(request)
    shown = []
    for _ in range(3):
        carry, (chunk,) = dialect.chunk(HEAD, carry, ChoiceDelta(0, [Content("a")], [5]), None)
        (choice,) = chunk["choices"]
        shown.append((chunk.get("prompt_token_ids") or choice.get("prompt_token_ids"), choice["token_ids"]))
    assert shown == [([1, 2, 3], [5]), (None, [5]), (None, [5])]
    _, (chunk,) = dialect.chunk(HEAD, dialect.open_stream(None), ChoiceDelta(0, [Content("a")], [5]), None)
    assert chunk.get("prompt_token_ids") is None
    assert all(
        chunk["choices"][0][name] is None for name in ("token_ids", "prompt_token_ids") if name in chunk["choices"][0]
    )


@pytest.mark.parametrize("dialect", [chat, completions], ids=lambda dialect: dialect.NAME)
@pytest.mark.parametrize(
    ("delta", "ids", "says"),
    [
        (ChoiceDelta(0), False, False),
        (ChoiceDelta(0, token_ids=[5]), False, False),
        (ChoiceDelta(0, token_ids=[5]), True, True),
        (ChoiceDelta(0, [Content("a")]), False, True),
        (ChoiceDelta(0, finish_reason="stop"), False, True),
        (ChoiceDelta(0, logprobs=[POSITION]), False, True),
    ],
)
def test_chunks_that_say_nothing_are_known(dialect: Dialect, delta: ChoiceDelta, ids: bool, says: bool) -> None:
    carry = dialect.open_stream(ChatRequest([], options=RequestOptions(return_token_ids=ids)))
    assert dialect.says_something(delta, {**carry, "role": True}) is says


def test_the_first_chunk_of_a_chat_always_says_something() -> None:
    """It has the role, which no other chunk repeats."""
    carry = chat.open_stream(None)
    assert chat.says_something(ChoiceDelta(0), carry)
    carry, (first,) = chat.chunk(HEAD, carry, ChoiceDelta(0), None)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    carry, (second,) = chat.chunk(HEAD, carry, ChoiceDelta(0, [Content("a")]), None)
    assert second["choices"][0]["delta"]["role"] is None


# ---------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", 17, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("tool_calls", None, ("tool_use", None)),
        ("tool_calls", "END", ("tool_use", "END")),
        ("abort", None, ("pause_turn", None)),
        ("content_filter", None, ("refusal", None)),
        (None, None, (None, None)),
    ],
)
def test_stop_reasons(finish_reason: str | None, stop_reason: Any, expected: tuple[str | None, str | None]) -> None:
    given = answer(finish_reason=finish_reason, stop_reason=stop_reason)
    message = valid_message(messages.response(HEAD, None, [given], USAGE))
    assert (message.stop_reason, message.stop_sequence) == expected


def test_cached_input_is_counted_apart() -> None:
    usage = messages.response(HEAD, None, [answer()], USAGE)["usage"]
    assert usage == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": 2.0}', {"a": 2.0}),
        ("[1]", {NOT_JSON: "[1]"}),
        ('{"a": ', {NOT_JSON: '{"a": '}),
        ('{"a": NaN}', {NOT_JSON: '{"a": NaN}'}),
        ('{"a": "\\ud800"}', {NOT_JSON: '{"a": "\\ud800"}'}),
        ('{"a": ' * 300 + "1" + "}" * 300, None),
        ("{" * 100_000, None),
    ],
)
def test_a_calls_input_is_always_an_object_that_can_be_written(arguments: str, expected: Json) -> None:
    assert read_input(arguments) == (expected if expected is not None else {NOT_JSON: arguments})


@pytest.mark.parametrize(
    ("given", "shown"), [("chatcmpl-7", "msg_7"), ("msg_7", "msg_7"), ("7", "msg_7"), ("chatcmpl-a-b", "msg_a-b")]
)
def test_a_message_is_named_after_its_request(given: str, shown: str) -> None:
    head = AnswerHead(given, 0, "m")
    assert messages.response(head, None, [answer()], USAGE)["id"] == shown
    _, (start, *_) = messages.chunk(head, messages.open_stream(None), ChoiceDelta(0), None)
    assert start["message"]["id"] == shown


def test_input_tokens_are_known_from_the_start() -> None:
    _, (start,) = messages.chunk(HEAD, messages.open_stream(None), ChoiceDelta(0), None)
    assert start["message"]["usage"]["input_tokens"] == 3
    _, (start,) = messages.chunk(HEAD, messages.open_stream(None), ChoiceDelta(0), Usage(11, 1, cached_tokens=4))
    usage = start["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (7, 4, 0)


def test_a_message_may_end_without_a_count_from_the_engine() -> None:
    carry, _ = messages.chunk(HEAD, messages.open_stream(None), ChoiceDelta(0, [Content("x")], [5, 6]), None)
    _, (stop, delta, end) = messages.chunk(HEAD, carry, None, None)
    assert stop == {"type": "content_block_stop", "index": 0}
    assert (delta["usage"]["input_tokens"], delta["usage"]["output_tokens"]) == (3, 2)
    assert end == {"type": "message_stop"}


@pytest.mark.parametrize("dialect", [messages, responses], ids=lambda dialect: dialect.NAME)
def test_a_result_without_choices_is_an_empty_answer(dialect: Dialect) -> None:
    wire = dialect.response(HEAD, None, [], USAGE)
    assert wire.get("content", wire.get("output")) == []


# ---------------------------------------------------------------------------------------------- responses


@pytest.mark.parametrize(
    ("finish_reason", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("abort", "incomplete", None),
        (None, "incomplete", None),
    ],
)
def test_statuses(finish_reason: str | None, status: str, reason: str | None) -> None:
    whole = responses.response(RESPONSE_HEAD, None, [answer(finish_reason=finish_reason)], USAGE)
    read = valid_response(whole)
    assert read.status == status
    assert (read.incomplete_details.reason if read.incomplete_details else None) == reason
    delta = ChoiceDelta(0, [Content("Hi")], [5], finish_reason=finish_reason)
    carry, _ = responses.chunk(RESPONSE_HEAD, responses.open_stream(None), delta, None)
    _, events = responses.chunk(RESPONSE_HEAD, carry, None, USAGE)
    assert events[-1]["type"] == f"response.{status}"


def test_what_was_cut_is_incomplete_and_what_came_before_is_not() -> None:
    events = [Reasoning("Hm."), Content("Hi"), ToolStart(0, "c", "f"), ToolArguments(0, "{"), ToolEnd(0, "unclosed")]
    for cut, expected in ((events, "incomplete"), (events[:2], "incomplete"), (events[:1], "incomplete")):
        whole = responses.response(RESPONSE_HEAD, None, [answer(events=cut, finish_reason="length")], USAGE)
        statuses = [item["status"] for item in whole["output"]]
        assert statuses == ["completed"] * (len(statuses) - 1) + [expected]
    whole = responses.response(RESPONSE_HEAD, None, [answer(events=events[:2])], USAGE)
    assert [item["status"] for item in whole["output"]] == ["completed", "completed"]


def test_usage_details_are_numbers() -> None:
    assert responses.response(RESPONSE_HEAD, None, [answer()], Usage(3, 2))["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }
    usage = responses.response(RESPONSE_HEAD, None, [answer()], USAGE)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2


def test_a_response_repeats_its_request() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
        {"type": "web_search"},
    ]
    sent = {
        "input": "x",
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "tools": tools,
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_object"}},
        "truncation": "auto",
        "user": "u",
    }
    wire = responses.response(RESPONSE_HEAD, responses.parse(sent), [answer()], USAGE)
    assert {key: wire[key] for key in sent if key != "input"} == {k: v for k, v in sent.items() if k != "input"}
    valid_response(wire)
    plain = responses.response(RESPONSE_HEAD, responses.parse({"input": "x"}), [answer()], USAGE)
    assert (plain["tool_choice"], plain["tools"], plain["text"]) == ("auto", [], {"format": {"type": "text"}})


def test_names_of_calls_come_back_as_they_were_declared() -> None:
    space = {"type": "namespace", "name": "maps", "description": "", "tools": [{"type": "custom", "name": "find"}]}
    request = responses.parse({"input": "x", "tools": [{"type": "custom", "name": "shell"}, space]})
    given = answer(
        content=None,
        tool_calls=[
            CallAnswer("a", "shell", '{"input": "ls"}', "ok"),
            CallAnswer("b", "maps__find", '{"input": "Oslo"}', "ok"),
            CallAnswer("c", "other__find", "{}", "ok"),
        ],
    )
    output = responses.response(RESPONSE_HEAD, request, [given], USAGE)["output"]
    assert [(item["type"], item["name"], item.get("namespace")) for item in output] == [
        ("custom_tool_call", "shell", None),
        ("custom_tool_call", "find", "maps"),
        ("function_call", "other__find", None),
    ]
    assert [item.get("input") for item in output] == ["ls", "Oslo", None]


def test_text_that_is_held_back_keeps_its_logprobs() -> None:
    """A token may end in half a character: its position comes before its text."""
    half = DecodedPosition(DecodedLogprob(5, "", -0.5, b"\xc3"), [], region="content")
    carry, events = responses.chunk(RESPONSE_HEAD, responses.open_stream(None), ChoiceDelta(0, [], [5], [half]), None)
    carry, more = responses.chunk(RESPONSE_HEAD, carry, ChoiceDelta(0, [Content("é")], [6], [POSITION]), None)
    deltas = [event for event in [*events, *more] if event["type"] == "response.output_text.delta"]
    assert [(event["delta"], len(event["logprobs"])) for event in deltas] == [("", 1), ("é", 1)]
    _, more = responses.chunk(RESPONSE_HEAD, carry, ChoiceDelta(0, [], [7], [half]), None)
    assert [(event["delta"], len(event["logprobs"])) for event in more] == [("", 1)]


def test_positions_of_unknown_place_belong_to_the_text_that_is_open() -> None:
    unknown = DecodedPosition(DecodedLogprob(5, "x", -0.5, b"x"), [])
    carry, events = responses.chunk(
        RESPONSE_HEAD, responses.open_stream(None), ChoiceDelta(0, [], [5], [unknown]), None
    )
    assert [event["type"] for event in events] == ["response.created", "response.in_progress"]
    carry, _ = responses.chunk(RESPONSE_HEAD, carry, ChoiceDelta(0, [Content("x")], [5], [unknown]), None)
    for said in ([], [ToolStart(0, "c", "f")]):
        _, (first, *_) = responses.chunk(RESPONSE_HEAD, carry, ChoiceDelta(0, said, [5], [unknown]), None)
        assert (first["type"], first["output_index"]) == ("response.output_text.delta", 0)
        assert (first["delta"], len(first["logprobs"])) == ("", 1)


# ---------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.NAME)
def test_answers_need_no_request(dialect: Dialect) -> None:
    assert dialect.response(HEAD, None, [answer()], USAGE)
    carry, events = dialect.chunk(HEAD, dialect.open_stream(None), ChoiceDelta(0, [Content("x")], [5]), None)
    assert events
    _, events = dialect.chunk(HEAD, carry, None, USAGE)
    assert all("type" in event for event in events) == dialect.NAMED_EVENTS
