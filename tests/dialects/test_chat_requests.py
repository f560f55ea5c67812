"""OpenAI chat requests → conversations, as CONTRACT 2.4 and 3.6 tell it."""

from __future__ import annotations

from typing import Any

import pytest

from scaleout.core import Message, Part, StreamOptions, Tool, ToolCall, ToolChoice
from scaleout.dialects import chat
from scaleout.errors import BadRequest, InvalidField

from .bodies import CHAT, SCHEMA

Json = Any
FIND = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def body(*messages: Json, **more: Json) -> dict[str, Json]:
    return {"messages": list(messages) or [{"role": "user", "content": "hi"}], **more}


def read(*messages: Json) -> list[Message]:
    return list(chat.parse(body(*messages)).messages)


def test_a_rich_request() -> None:
    request = chat.parse(CHAT)
    find = ToolCall("c1", "find", {"city": "Oslo", "n": 2.0}), ToolCall("c2", "find", {"city": "Bergen"})
    assert [
        (m.role, m.content, m.name, m.reasoning, tuple(m.tool_calls), m.tool_call_id) for m in request.messages
    ] == [
        ("system", "Be brief.", None, None, (), None),
        ("developer", [Part("text", "Really.")], None, None, (), None),
        (
            "user",
            [Part("text", "bare"), Part("text", "part"), Part("image_url", None, {"image_url": {"url": "data:,"}})],
            *("u", None, (), None),
        ),
        ("assistant", None, None, "Hm.", find, None),
        ("tool", [Part("text", "-3")], None, None, (), "c1"),
        ("user", "", None, None, (), None),
    ]
    assert list(request.messages[3].tool_calls[0].arguments) == ["city", "n"]
    assert isinstance(request.messages[3].tool_calls[0].arguments["n"], float)
    assert request.tools == [Tool("find", "d", SCHEMA, True)]
    assert request.tool_choice == ToolChoice("named", "find")
    assert (request.parallel_tool_calls, request.reasoning_effort) == (False, "low")
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.limit_name) == (30, "max_completion_tokens")
    assert (sampling.n, sampling.seed, sampling.temperature, sampling.stop) == (2, 7, 0.5, ["END"])
    assert (sampling.logprobs, sampling.logit_bias) == (3, {7: 1.5})
    assert (sampling.structured_outputs, sampling.extra_args) == ({"json": SCHEMA}, {"a": 1})
    assert request.options.stream_options == StreamOptions(include_usage=True)
    assert request.documents == [{"title": "t", "text": "x"}]
    assert request.chat_template_kwargs == {"enable_thinking": False}


def test_nulls_count_as_not_sent() -> None:
    names = ("n", "temperature", "stop", "tools", "stream_options", "top_logprobs", "max_tokens", "seed", "logit_bias")
    assert chat.parse(body(**dict.fromkeys(names))) == chat.parse(body())


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning": "a", "reasoning_content": "b"}, "a"),
        ({"reasoning": None, "reasoning_content": "b"}, "b"),
        ({"reasoning_content": "b"}, "b"),
        ({}, None),
    ],
)
def test_reasoning_has_two_spellings(message: Json, reasoning: str | None) -> None:
    (turn,) = read({"role": "assistant", "content": "x", **message})
    assert turn.reasoning == reasoning


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "input_text", "text": "a"}, Part("text", "a")),
        ({"type": "refusal", "refusal": "no"}, Part("text", "no")),
        ({"type": "thinking", "thinking": "hm"}, Part("text", "hm")),
        ({"type": "text", "text": "a", "cache": 1}, Part("text", "a", {"cache": 1})),
        ({"text": "a"}, Part("text", "a")),
        ({"type": "tool_reference", "name": "f"}, Part("tool_reference", None, {"name": "f"})),
        ({"audio_url": {"url": "u"}, "uuid": "x"}, Part("audio_url", None, {"audio_url": {"url": "u"}, "uuid": "x"})),
    ],
)
def test_content_parts(part: Json, expected: Part) -> None:
    (turn,) = read({"role": "user", "content": [part]})
    assert turn.content == [expected]


@pytest.mark.parametrize(("role", "content"), [("assistant", None), ("user", ""), ("system", "")])
def test_null_content_is_kept_for_assistants_alone(role: str, content: str | None) -> None:
    assert read({"role": role, "content": None})[0].content == content


@pytest.mark.parametrize("role", ["narrator", "developer", "ipython"])
def test_roles_are_free(role: str) -> None:
    tools = [{"a": 1}]
    (turn,) = read({"role": role, "content": "x", "task": "t", "tools": tools})
    assert turn == Message(
        role, "x", tool_calls=[], extra={"task": "t"} | ({"tools": tools} if role == "developer" else {})
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 2.0, "b": 1}', {"a": 2.0, "b": 1}),
        ("", {}),
        (None, {}),
        ("  ", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_arguments_are_text_or_an_object(arguments: Json, expected: Json) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (turn,) = read({"role": "assistant", "tool_calls": [call]})
    (read_call,) = turn.tool_calls
    assert read_call == ToolCall("c", "f", expected)
    assert [type(value) for value in read_call.arguments.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize("arguments", ["not json", "[1]", "5", [1], 5, "[" * 100_000])
def test_arguments_that_are_no_object_name_their_call(arguments: Json) -> None:
    calls = [{"function": {"name": "f", "arguments": given}} for given in ("{}", arguments)]
    with pytest.raises(BadRequest, match=r"messages\[1\]\.tool_calls\[1\]") as caught:
        read({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls})
    assert caught.value.param == "body.messages.1.tool_calls.1.function.arguments"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ToolChoice("none")),
        ({"tools": [FIND]}, ToolChoice("auto")),
        ({"tools": [FIND], "tool_choice": None}, None),
        ({"tools": [FIND], "tool_choice": "none"}, ToolChoice("none")),
        ({"tools": [FIND], "tool_choice": "required"}, ToolChoice("required")),
        (
            {"tools": [FIND], "tool_choice": {"type": "function", "function": {"name": "find"}}},
            ToolChoice("named", "find"),
        ),
        ({"tool_choice": "none"}, ToolChoice("none")),
    ],
)
def test_tool_choices(more: Json, expected: ToolChoice | None) -> None:
    assert chat.parse(body(**more)).tool_choice == expected


@pytest.mark.parametrize(
    ("more", "logprobs"),
    [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 2}, 2),
        ({"logprobs": True, "top_logprobs": -1}, -1),
    ],
)
def test_logprobs(more: Json, logprobs: int | None) -> None:
    assert chat.parse(body(**more)).sampling.logprobs == logprobs


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, {"json": SCHEMA}),
        ({"type": "structural_tag", "format": {}}, {"structural_tag": '{"type":"structural_tag","format":{}}'}),
    ],
)
def test_response_formats(wanted: Json, expected: Json) -> None:
    assert chat.parse(body(response_format=wanted)).sampling.structured_outputs == expected


BAD = {
    "no messages": ({"messages": None}, "body.messages"),
    "message is text": ({"messages": ["x"]}, "body.messages.0"),
    "no role": ({"messages": [{"content": "x"}]}, "body.messages.0.role"),
    "role is a number": ({"messages": [{"role": 5, "content": "x"}]}, "body.messages.0.role"),
    "content is an object": ({"messages": [{"role": "user", "content": {}}]}, "body.messages.0.content"),
    "part without a type": ({"messages": [{"role": "user", "content": [{"x": 1}]}]}, "body.messages.0.content.0.type"),
    "unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "body.messages.0.content.0.type",
    ),
    "text part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "body.messages.0.content.0.text",
    ),
    "calls are an object": ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "body.messages.0.tool_calls"),
    "call without a function": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
        "body.messages.0.tool_calls.0",
    ),
    "call of another type": (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}]},
        "body.messages.0.tool_calls.0.type",
    ),
    "name is a number": ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "body.messages.0.name"),
    "tool without a function": ({"tools": [{"type": "function"}]}, "body.tools.0.function"),
    "tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "body.tools.0.function.name"),
    "schema is text": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
        "body.tools.0.function.parameters",
    ),
    "n is text": ({"n": "x"}, "body.n"),
    "stop is a number": ({"stop": 5}, "body.stop"),
    "logprobs is a number": ({"logprobs": 5}, "body.logprobs"),
    "seed of 65 bits": ({"seed": 2**63}, "body.seed"),
    "truncation below -1": ({"truncate_prompt_tokens": -2}, "body.truncate_prompt_tokens"),
    "unknown side": ({"truncation_side": "middle"}, "body.truncation_side"),
    "document is text": ({"documents": ["x"]}, "body.documents.0"),
    "document holds a number": ({"documents": [{"a": 1}]}, "body.documents.0.a"),
    "unknown effort": ({"reasoning_effort": "huge"}, "body.reasoning_effort"),
    "logprobs as text": ({"logprobs": True, "top_logprobs": "5"}, "body.top_logprobs"),
    "logprobs of the prompt as text": ({"prompt_logprobs": "1"}, "body.prompt_logprobs"),
    "schema without a name": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "body.response_format.json_schema.name",
    ),
    "unknown format": ({"response_format": {"type": "xml"}}, "body.response_format.type"),
    "format without a schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "body.response_format.json_schema.schema",
    ),
    "xargs hold an object": ({"vllm_xargs": {"a": {}}}, "body.vllm_xargs.a"),
    "xargs are a list": ({"vllm_xargs": []}, "body.vllm_xargs"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_by_its_path(name: str) -> None:
    spoiled, path = BAD[name]
    with pytest.raises(InvalidField) as caught:
        chat.parse(body(**spoiled))
    assert caught.value.param == path


RULES = {
    "no messages": ({"messages": []}, "empty conversation", "messages"),
    "empty tools": ({"tools": []}, "`tools` must not be an empty array", "tools"),
    "choice alone": ({"tool_choice": "auto"}, "When using `tool_choice`, `tools` must be set", "tool_choice"),
    "unknown choice": ({"tools": [FIND], "tool_choice": "zzz"}, "Invalid value for `tool_choice`: zzz!", "tool_choice"),
    "unknown tool": (
        {"tools": [FIND], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "does not match any of the specified `tools`",
        "tool_choice",
    ),
    "two ways to go on": (
        {"continue_final_message": True, "add_generation_prompt": True},
        "Cannot set both `continue_final_message` and `add_generation_prompt` to True",
        "continue_final_message",
    ),
    "stream options alone": (
        {"stream_options": {}},
        "Stream options can only be defined when `stream=True`",
        "stream_options",
    ),
    "top logprobs alone": ({"top_logprobs": 1}, "`logprobs` must be set to true", "top_logprobs"),
    "negative top logprobs": ({"logprobs": True, "top_logprobs": -2}, "must be a positive value or -1", "top_logprobs"),
    "logprobs of ids alone": ({"logprob_token_ids": [1]}, "`logprobs` must be set to true", "logprob_token_ids"),
    "prompt logprobs in a stream": (
        {"stream": True, "prompt_logprobs": 1},
        "not available when `stream=True`",
        "prompt_logprobs",
    ),
    "schema missing": (
        {"response_format": {"type": "json_schema"}},
        "'json_schema' field must be provided",
        "response_format",
    ),
    "two constraints": (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        "only use one kind of constraints",
        "structured_outputs",
    ),
    "constraint and a named tool": (
        {
            "structured_outputs": {"regex": "a"},
            "tools": [FIND],
            "tool_choice": {"type": "function", "function": {"name": "find"}},
        },
        "not both",
        "structured_outputs",
    ),
    "beam search": ({"use_beam_search": True}, "Beam search is not supported", "use_beam_search"),
    "salt": ({"cache_salt": "a/b"}, "must not contain", "cache_salt"),
    "bias of no id": ({"logit_bias": {"x": 1}}, "cannot be converted to an integer token ID", "logit_bias"),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_between_fields(name: str) -> None:
    spoiled, words, param = RULES[name]
    with pytest.raises(BadRequest, match=words) as caught:
        chat.parse(body(**spoiled))
    assert caught.value.param == param


def test_an_echo_asks_for_the_prompts_own_logprobs() -> None:
    assert chat.parse(body(echo=True)).sampling.prompt_logprobs == 0
    assert chat.parse(body(echo=True, logprobs=True, top_logprobs=2)).sampling.prompt_logprobs == 2
    assert chat.parse(body(echo=True, prompt_logprobs=1)).sampling.prompt_logprobs == 1


def test_two_constraints_stay_two() -> None:
    """Render refuses them; a format must not hide what `structured_outputs` says."""
    asked = chat.parse(body(structured_outputs={"regex": "a"}, response_format={"type": "json_object"}))
    assert asked.sampling.structured_outputs == {"regex": "a", "json_object": True}
    asked = chat.parse(body(structured_outputs={"regex": "a"}, response_format={"type": "text"}))
    assert asked.sampling.structured_outputs == {"regex": "a"}
