"""Responses requests → conversations, as CONTRACT 5.2 tells it."""

from __future__ import annotations

from typing import Any

import pytest

from scaleout.core import Message, Part, StreamOptions, Tool, ToolCall, ToolChoice
from scaleout.dialects import responses
from scaleout.dialects.responses_tools import CUSTOM_SCHEMA
from scaleout.errors import BadRequest, InvalidField

from .bodies import RESPONSE, SCHEMA

Json = Any
FIND = {"type": "function", "name": "find", "parameters": SCHEMA}
SHELL = {"type": "custom", "name": "shell"}


def user(content: Json) -> Json:
    return {"role": "user", "content": content}


def message(*texts: str, status: str = "completed") -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "role": "assistant", "status": status, "content": parts}


def reasoning(content: str | None = None, summary: str | None = None, **more: Json) -> Json:
    return {
        "type": "reasoning",
        "id": "r",
        "summary": [] if summary is None else [{"type": "summary_text", "text": summary}],
        **({} if content is None else {"content": [{"type": "reasoning_text", "text": content}]}),
        **more,
    }


def call(name: str, arguments: str = "{}", call_id: str = "c1", **more: Json) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def read(*items: Json, **more: Json) -> list[Message]:
    return list(responses.parse({"input": list(items), **more}).messages)


def test_a_rich_request() -> None:
    request = responses.parse(RESPONSE)
    assert list(request.messages) == [
        Message("system", "Be brief."),
        Message("developer", "Really."),
        Message("user", [Part("text", "a"), Part("text", "b")]),
        Message(
            "assistant",
            "Looking.",
            reasoning="Hm.",
            tool_calls=[
                ToolCall("c1", "find", {"city": "Oslo", "n": 2.0}),
                ToolCall("c2", "maps__find", {}),
                ToolCall("c3", "shell", {"input": "ls"}),
            ],
        ),
        Message("tool", "-3", tool_call_id="c1"),
        Message("tool", [Part("text", "x")], tool_call_id="c2"),
        Message("tool", "file", tool_call_id="c3"),
        Message("user", "Go on."),
    ]
    assert request.tools == [Tool("find", "d", SCHEMA, True)]
    assert request.tool_choice == ToolChoice("required")
    assert request.parallel_tool_calls is False
    assert request.reasoning_effort == "low"
    assert (request.add_generation_prompt, request.continue_final_message) == (True, False)
    sampling, options = request.sampling, request.options
    assert (sampling.max_tokens, sampling.limit_name, sampling.logprobs) == (30, "max_output_tokens", 2)
    assert sampling.structured_outputs == {"json": SCHEMA}
    assert (options.truncate_prompt_tokens, options.add_special_tokens, options.request_id) == (-1, False, "resp_1")
    assert options.stream_options == StreamOptions(include_usage=True)


def test_text_is_one_user_message() -> None:
    assert responses.parse({"input": "hi"}).messages == [Message("user", "hi")]
    assert responses.parse({"input": "", "instructions": ""}).messages == [Message("user", "")]
    assert responses.parse({"input": "hi", "instructions": "s"}).messages == [
        Message("system", "s"),
        Message("user", "hi"),
    ]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([message("one")], [Message("assistant", "one")]),
        ([message("one", "two")], [Message("assistant", "one")]),
        ([{"role": "assistant", "content": "easy"}], [Message("assistant", "easy")]),
        (
            [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [Message("assistant", "no")],
        ),
        ([call("f", '{"a": 2.0}')], [Message("assistant", [], tool_calls=[ToolCall("c1", "f", {"a": 2.0})])]),
        (
            [message("say"), call("f"), call("g", "", "c2")],
            [Message("assistant", "say", tool_calls=[ToolCall("c1", "f", {}), ToolCall("c2", "g", {})])],
        ),
        ([reasoning("think", "short"), message("say")], [Message("assistant", "say", reasoning="think")]),
        ([reasoning(summary="short"), message("say")], [Message("assistant", "say", reasoning="short")]),
        ([reasoning("t"), call("f")], [Message("assistant", [], reasoning="t", tool_calls=[ToolCall("c1", "f", {})])]),
        ([reasoning()], [Message("assistant", [], reasoning="")]),
        ([message("a"), reasoning("t")], [Message("assistant", "a"), Message("assistant", [], reasoning="t")]),
        ([message("a"), message("b")], [Message("assistant", "a"), Message("assistant", "b")]),
        (
            [call("f"), message("b")],
            [Message("assistant", [], tool_calls=[ToolCall("c1", "f", {})]), Message("assistant", "b")],
        ),
    ],
)
def test_items_of_one_turn_are_one_message(items: list[Json], expected: list[Message]) -> None:
    assert read(user("a"), *items, user("b")) == [Message("user", "a"), *expected, Message("user", "b")]


@pytest.mark.parametrize(
    ("last", "continues"),
    [
        (message("It is", status="in_progress"), True),
        (message("It is", status="incomplete"), True),
        (message("It is"), False),
        (reasoning("so", status="in_progress"), True),
        (reasoning("so"), False),
        (call("f", status="incomplete"), False),
        ({"role": "user", "content": "x", "status": "in_progress"}, True),
        (user("x"), False),
    ],
)
def test_an_unfinished_last_message_is_continued(last: Json, continues: bool) -> None:
    request = responses.parse({"input": [user("Say it."), last]})
    assert (request.continue_final_message, request.add_generation_prompt) == (continues, not continues)


def test_functions_custom_tools_and_namespaces_are_one_list() -> None:
    space = {"type": "namespace", "name": "ns", "description": "", "tools": [FIND, SHELL]}
    request = responses.parse({"input": "x", "tools": [FIND, {"type": "web_search"}, SHELL, {"type": "mcp"}, space]})
    assert request.tools == [
        Tool("find", None, SCHEMA),
        Tool("shell", None, CUSTOM_SCHEMA),
        Tool("ns__find", None, SCHEMA),
        Tool("ns__shell", None, CUSTOM_SCHEMA),
    ]
    assert request.echo["tools"] == [FIND, {"type": "web_search"}, SHELL, {"type": "mcp"}, space]


@pytest.mark.parametrize(
    ("choice", "tools", "expected", "names"),
    [
        (None, [FIND], ToolChoice("auto"), ["find"]),
        ("auto", None, ToolChoice("none"), None),
        ("auto", [{"type": "web_search"}], ToolChoice("none"), None),
        ("none", [FIND], ToolChoice("none"), ["find"]),
        ("required", [FIND], ToolChoice("required"), ["find"]),
        ({"type": "function", "name": "find"}, [FIND], ToolChoice("named", "find"), ["find"]),
        ({"type": "custom", "name": "shell"}, [FIND, SHELL], ToolChoice("named", "shell"), ["find", "shell"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "shell"}]},
            [FIND, SHELL],
            ToolChoice("auto"),
            ["shell"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            [FIND, {"type": "web_search"}],
            ToolChoice("none"),
            None,
        ),
    ],
)
def test_tool_choices(choice: Json, tools: Json, expected: ToolChoice, names: list[str] | None) -> None:
    request = responses.parse({"input": "x", "tools": tools, "tool_choice": choice})
    assert request.tool_choice == expected
    assert (None if request.tools is None else [tool.name for tool in request.tools]) == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, {"json_object": True}),
        ({"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}, {"json": SCHEMA}),
    ],
)
def test_text_formats(text: Json, expected: Json) -> None:
    assert responses.parse({"input": "x", "text": text}).sampling.structured_outputs == expected


def test_structured_outputs_may_stand_alone() -> None:
    request = responses.parse(
        {"input": "x", "structured_outputs": {"choice": ["a"]}, "text": {"format": {"type": "text"}}}
    )
    assert request.sampling.structured_outputs == {"choice": ["a"]}


@pytest.mark.parametrize(
    ("include", "top", "logprobs"),
    [([], 3, None), (["message.output_text.logprobs"], 0, 0), (["message.output_text.logprobs"], 3, 3)],
)
def test_logprobs_are_given_where_they_are_included(include: list[str], top: int, logprobs: int | None) -> None:
    request = responses.parse({"input": "x", "include": include, "top_logprobs": top})
    assert request.sampling.logprobs == logprobs


def test_fields_of_other_dialects_are_passed_over() -> None:
    given = {"n": 3, "min_tokens": 3, "bad_words": ["x"], "max_tokens": 5, "echo": True, "stream_options": {"a": 1}}
    request = responses.parse({"input": "x", **given, "response_format": {"type": "json_object"}})
    assert request.sampling == responses.parse({"input": "x"}).sampling
    assert request.options == responses.parse({"input": "x"}).options


def test_reasoning_can_be_left_out_of_the_answer() -> None:
    assert responses.parse({"input": "x", "include_reasoning": False}).include_reasoning is False


BAD = {
    "no input": ({"input": None}, "body.input"),
    "input is a number": ({"input": 3}, "body.input"),
    "item is text": ({"input": ["x"]}, "body.input.0"),
    "item without a type": ({"input": [{"id": "x"}]}, "body.input.0.type"),
    "unknown role": ({"input": [{"role": "tool", "content": "x"}]}, "body.input.0.role"),
    "no content": ({"input": [{"role": "user"}]}, "body.input.0.content"),
    "file": ({"input": [user([{"type": "input_file", "file_id": "x"}])]}, "body.input.0.content.0.type"),
    "call without an id": ({"input": [{"type": "function_call", "name": "f"}]}, "body.input.0.call_id"),
    "call without a name": ({"input": [{"type": "function_call", "call_id": "c"}]}, "body.input.0.name"),
    "custom call without input": (
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]},
        "body.input.0.input",
    ),
    "output is an object": (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]},
        "body.input.0.output",
    ),
    "no output": ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "body.input.0.output"),
    "thought is a number": ({"input": [reasoning(3)]}, "body.input.0.content.0.text"),  # type: ignore[arg-type]
    "instructions are a list": ({"instructions": []}, "body.instructions"),
    "tools are text": ({"tools": "x"}, "body.tools"),
    "tool without a type": ({"tools": [{"name": "f"}]}, "body.tools.0.type"),
    "tool without a name": ({"tools": [{"type": "function"}]}, "body.tools.0.name"),
    "schema is a list": ({"tools": [{**FIND, "parameters": []}]}, "body.tools.0.parameters"),
    "inner tool without a name": (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
        "body.tools.0.tools.0.name",
    ),
    "unknown choice": ({"tools": [FIND], "tool_choice": "maybe"}, "body.tool_choice"),
    "choice without a name": ({"tools": [FIND], "tool_choice": {"type": "function"}}, "body.tool_choice.name"),
    "allowed without a mode": ({"tools": [FIND], "tool_choice": {"type": "allowed_tools"}}, "body.tool_choice.mode"),
    "unknown format": ({"text": {"format": {"type": "xml"}}}, "body.text.format.type"),
    "format without a name": ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "body.text.format.name"),
    "format without a schema": ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "body.text.format.schema"),
    "unknown status": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "auto"}]},
        "body.input.0.status",
    ),
    "unknown include": ({"include": ["everything"]}, "body.include.0"),
    "unknown truncation": ({"truncation": "middle"}, "body.truncation"),
    "unknown effort": ({"reasoning": {"effort": "huge"}}, "body.reasoning.effort"),
    "penalty too high": ({"presence_penalty": 3}, "body.presence_penalty"),
    "five stops": ({"stop": list("abcde")}, "body.stop"),
    "long seed": ({"seed": 2**63}, "body.seed"),
    "seed is text": ({"seed": "x"}, "body.seed"),
    "metadata is a number": ({"metadata": 3}, "body.metadata"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_by_its_path(name: str) -> None:
    spoiled, path = BAD[name]
    with pytest.raises(InvalidField) as caught:
        responses.parse({"input": "x", **spoiled})
    assert caught.value.param == path


RULES = {
    "previous response": (
        {"previous_response_id": "resp_1"},
        "previous_response_id is not supported",
        "previous_response_id",
    ),
    "prompt": ({"prompt": {"id": "p"}}, "prompt template is not supported", "prompt"),
    "background": (
        {"background": True, "store": False},
        "background can only be used when `store` is true",
        "background",
    ),
    "two formats": (
        {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
        "Cannot specify both structured_outputs and text.format",
        "structured_outputs",
    ),
    "unknown item": ({"input": [{"type": "hologram"}]}, "Unsupported input item type: hologram", "input"),
    "encrypted thought": (
        {"input": [reasoning("t", encrypted_content="x")]},
        "Encrypted content is not supported",
        "input",
    ),
    "no items": ({"input": []}, "Provide at least one message", "input"),
    "arguments are no JSON": (
        {"input": [user("a"), call("f", "not json")]},
        r"input\[1\]: arguments is not a JSON object",
        "body.input.1.arguments",
    ),
    "required alone": ({"tool_choice": "required"}, "must be specified with 'tools'", "tool_choice"),
    "nothing to require": (
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        "no function tool the model can call",
        "tool_choice",
    ),
    "unknown tool": (
        {"tools": [FIND], "tool_choice": {"type": "function", "name": "g"}},
        "Tool choice 'function' not found in 'tools' parameter",
        "tool_choice",
    ),
    "hosted tool": (
        {"tools": [FIND], "tool_choice": {"type": "web_search"}},
        "Unsupported tool_choice type",
        "tool_choice",
    ),
    "grammar": (
        {"tools": [{**SHELL, "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]},
        "Custom tools with a grammar format are not supported",
        "tools",
    ),
    "logprobs": ({"top_logprobs": -2}, "top_logprobs", "top_logprobs"),
    "salt": ({"cache_salt": ""}, "cache_salt", "cache_salt"),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_between_fields(name: str) -> None:
    spoiled, words, param = RULES[name]
    with pytest.raises(BadRequest, match=words) as caught:
        responses.parse({"input": "x", **spoiled})
    assert caught.value.param == param


def test_a_refused_previous_response_has_the_type_that_clients_look_for() -> None:
    with pytest.raises(BadRequest) as caught:
        responses.parse({"input": "x", "previous_response_id": "resp_1"})
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
