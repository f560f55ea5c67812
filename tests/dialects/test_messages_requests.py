"""Anthropic requests → conversations, as CONTRACT 5.1 tells it."""

from __future__ import annotations

from typing import Any

import pytest

from scaleout.core import Message, Part, StreamOptions, Tool, ToolCall, ToolChoice
from scaleout.dialects import chat, messages
from scaleout.errors import BadRequest, InvalidField

from .bodies import MESSAGE, SCHEMA

Json = Any
FIND = {"name": "find", "input_schema": SCHEMA}
LATER = {"name": "later", "description": "d", "input_schema": {"properties": {}}, "defer_loading": True}


def body(*conversation: Json, **more: Json) -> dict[str, Json]:
    return {"model": "m", "max_tokens": 50, "messages": list(conversation) or [user("hi")], **more}


def user(content: Json) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Json) -> Json:
    return {"role": "assistant", "content": content}


def system(content: Json) -> Json:
    return {"role": "system", "content": content}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def read(*conversation: Json, **more: Json) -> list[Message]:
    return list(messages.parse(body(*conversation, **more)).messages)


def test_a_rich_conversation() -> None:
    request = messages.parse(MESSAGE)
    image = Part("image_url", None, {"image_url": {"url": "https://e/x.png"}})
    assert list(request.messages) == [
        Message("system", "Be brief."),
        Message("user", [Part("text", "a"), Part("text", "b")]),
        Message(
            "assistant", "Looking.", reasoning="Hm.", tool_calls=[ToolCall("t1", "find", {"city": "Oslo", "n": 2.0})]
        ),
        Message("tool", "-3\nsnow", tool_call_id="t1"),
        Message("user", [image]),
        Message("tool", [Part("tool_reference", None, {"name": "more"})], tool_call_id="t1"),
        Message("user", "And?"),
        Message("system", "Stay brief."),
        Message("user", "Go on."),
    ]
    assert request.tools == [Tool("find", "d", SCHEMA, True), Tool("more", None, {"type": "object"})]
    assert request.tool_choice == ToolChoice("named", "find")
    assert request.parallel_tool_calls is False
    assert request.reasoning_effort == "high"
    assert request.system_may_move
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.limit_name, sampling.thinking_token_budget) == (3000, "max_tokens", 1024)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.stop) == (0.5, 5, 0.9, ["END"])
    assert sampling.structured_outputs == {"json": SCHEMA}
    assert request.options.user == "u"
    assert request.options.stream_options == StreamOptions(include_usage=True, continuous_usage_stats=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("", None),
        ("Base.", "Base."),
        ([], None),
        ([text("A"), text("B")], "AB"),
        ([text("x-anthropic-billing-header: cc=1"), text("Real.")], "Real."),
        ([text("x-anthropic-billing-header: cc=1")], None),
    ],
)
def test_system_forms(given: Json, expected: str | None) -> None:
    first, *rest = read(user("hi"), system=given)
    assert (first.content if first.role == "system" else None) == expected
    assert (rest or [first])[-1] == Message("user", "hi")


def test_inline_system_messages_stay_in_their_place() -> None:
    turns = read(user("a"), system("note"), system(""), system([text("x"), text("y")]), user("b"), system="Base.")
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", "Base."),
        ("user", "a"),
        ("system", "note"),
        ("system", "xy"),
        ("user", "b"),
    ]


def test_results_come_before_what_else_a_message_says() -> None:
    turns = read(
        user(
            [
                text("before"),
                {"type": "tool_result", "tool_use_id": "t", "content": "r"},
                text("after"),
                {"type": "tool_result", "tool_use_id": "u", "is_error": True},
            ]
        )
    )
    assert [(turn.role, turn.tool_call_id, turn.content) for turn in turns] == [
        ("tool", "t", "r"),
        ("tool", "u", ""),
        ("user", None, [Part("text", "before"), Part("text", "after")]),
    ]


def test_a_message_left_without_content_is_left_out() -> None:
    assert [turn.role for turn in read(user("a"), user([]), assistant([]), user([{"type": "thinking"}]))] == [
        "user",
        "assistant",
    ]
    with pytest.raises(BadRequest, match="empty conversation"):
        messages.parse(body(user([])))


def test_an_assistant_that_only_calls_has_no_content() -> None:
    (_, turn) = read(user("a"), assistant([{"type": "tool_use", "name": "f"}]))
    assert turn == Message("assistant", [], tool_calls=[ToolCall(None, "f", {})])


def test_results_in_an_assistant_message_become_text() -> None:
    (_, turn) = read(user("a"), assistant([{"type": "tool_result", "tool_use_id": "t", "content": "x"}]))
    assert (turn.role, turn.content) == ("assistant", "Tool result: x")


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "url", "url": "https://e/x"}, "https://e/x"),
        ({"type": "base64", "media_type": "image/png", "data": "QUE="}, "data:image/png;base64,QUE="),
        ({"type": "base64", "data": "QUE="}, "data:image/jpeg;base64,QUE="),
    ],
)
def test_image_sources(source: Json, url: str) -> None:
    (turn,) = read(user([{"type": "image", "source": source}]))
    assert turn.content == [Part("image_url", None, {"image_url": {"url": url}})]


def change(kind: str, tool: Json) -> Json:
    return system([{"type": kind, "tool": tool}])


def reference(name: str) -> Json:
    return {"type": "tool_reference", "name": name}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], [("find", None), ("later", True)]),
        ([change("tool_addition", reference("later"))], [("find", None), ("later", None)]),
        ([change("tool_removal", reference("find"))], [("later", True)]),
        (
            [change("tool_removal", reference("find")), change("tool_addition", reference("find"))],
            [("later", True), ("find", None)],
        ),
        ([change("tool_removal", reference("find")), change("tool_removal", reference("later"))], None),
        (
            [change("tool_addition", {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}})],
            [("find", None), ("later", True), ("new", None)],
        ),
    ],
)
def test_a_conversation_may_change_its_tools(
    changes: list[Json], expected: list[tuple[str, bool | None]] | None
) -> None:
    request = messages.parse(body(user("a"), *changes, user("b"), tools=[FIND, LATER]))
    assert [turn.role for turn in request.messages] == ["user", "user"]
    tools = None if request.tools is None else [(tool.name, tool.defer_loading) for tool in request.tools]
    assert tools == expected
    assert request.tool_choice == ToolChoice("auto" if expected else "none")


@pytest.mark.parametrize("kind", ["tool_addition", "tool_removal"])
def test_only_declared_tools_can_be_changed(kind: str) -> None:
    with pytest.raises(BadRequest, match=f"{kind} references tool 'nope', which is not declared in tools"):
        messages.parse(body(user("a"), change(kind, reference("nope")), tools=[FIND]))


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (None, [FIND], ToolChoice("auto")),
        (None, None, ToolChoice("none")),
        ({"type": "auto"}, [FIND], ToolChoice("auto")),
        ({"type": "any"}, [FIND], ToolChoice("required")),
        ({"type": "none"}, [FIND], ToolChoice("none")),
        ({"type": "tool", "name": "find"}, [FIND], ToolChoice("named", "find")),
        ({"type": "any"}, None, ToolChoice("none")),
        ({"type": "auto"}, [], ToolChoice("none")),
    ],
)
def test_tool_choices(choice: Json, tools: Json, expected: ToolChoice) -> None:
    request = messages.parse(body(tools=tools, tool_choice=choice))
    assert request.tool_choice == expected
    assert request.parallel_tool_calls
    assert (request.tools is None) == (not tools)


@pytest.mark.parametrize(
    ("thinking", "effort", "expected"),
    [
        (None, None, (None, None)),
        ({"type": "disabled"}, None, ("none", None)),
        ({"type": "disabled"}, "high", ("none", None)),
        ({"type": "adaptive"}, "low", ("low", None)),
        ({"type": "enabled", "budget_tokens": 2000, "display": "omitted"}, None, (None, 2000)),
    ],
)
def test_thinking(thinking: Json, effort: str | None, expected: tuple[str | None, int | None]) -> None:
    request = messages.parse(body(max_tokens=3000, thinking=thinking, output_config={"effort": effort}))
    assert (request.reasoning_effort, request.sampling.thinking_token_budget) == expected


def test_a_budget_may_be_larger_where_another_server_answers() -> None:
    given = body(thinking={"type": "enabled", "budget_tokens": 2000}, kv_transfer_params={"do_remote_decode": True})
    assert messages.parse(given).sampling.thinking_token_budget == 2000


def test_counting_needs_no_limit_and_reads_the_same_prompt() -> None:
    counted = {key: value for key, value in MESSAGE.items() if key != "max_tokens"}
    assert messages.parse_to_count(counted).messages == messages.parse(MESSAGE).messages
    assert messages.parse_to_count(counted).tools == messages.parse(MESSAGE).tools
    assert messages.parse_to_count(counted).reasoning_effort == messages.parse(MESSAGE).reasoning_effort


def test_the_same_talk_is_the_same_conversation_in_openai_words() -> None:
    """One request in two dialects: the prompts cannot differ."""
    anthropic = messages.parse(body(user("a"), assistant("b"), user("c"), system="s", tools=[FIND]))
    tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
    talk = [
        {"role": role, "content": said}
        for role, said in zip(("system", "user", "assistant", "user"), "sabc", strict=True)
    ]
    openai = chat.parse({"model": "m", "messages": talk, "tools": [tool]})
    assert [(turn.role, turn.content) for turn in anthropic.messages] == [
        (turn.role, turn.content) for turn in openai.messages
    ]
    assert anthropic.tools == openai.tools
    assert anthropic.tool_choice == openai.tool_choice


BAD = {
    "no model": ({"model": None}, "body.model"),
    "empty model": ({"model": ""}, "body.model"),
    "no limit": ({"max_tokens": None}, "body.max_tokens"),
    "limit of zero": ({"max_tokens": 0}, "body.max_tokens"),
    "limit is no number": ({"max_tokens": "x"}, "body.max_tokens"),
    "no list": ({"messages": "x"}, "body.messages"),
    "no object": ({"messages": ["x"]}, "body.messages.0"),
    "unknown role": ({"messages": [{"role": "tool", "content": "x"}]}, "body.messages.0.role"),
    "no content": ({"messages": [{"role": "user"}]}, "body.messages.0.content"),
    "content is a number": ({"messages": [user(3)]}, "body.messages.0.content"),
    "block is text": ({"messages": [user(["x"])]}, "body.messages.0.content.0"),
    "unknown block": ({"messages": [user([{"type": "video"}])]}, "body.messages.0.content.0.type"),
    "text is a number": ({"messages": [user([{"type": "text", "text": 3}])]}, "body.messages.0.content.0.text"),
    "image without a source": ({"messages": [user([{"type": "image"}])]}, "body.messages.0.content.0.source"),
    "image of a file": (
        {"messages": [user([{"type": "image", "source": {"type": "file"}}])]},
        "body.messages.0.content.0.source.type",
    ),
    "input is text": (
        {"messages": [assistant([{"type": "tool_use", "name": "f", "input": "x"}])]},
        "body.messages.0.content.0.input",
    ),
    "call without a name": ({"messages": [assistant([{"type": "tool_use"}])]}, "body.messages.0.content.0.name"),
    "result of a kind nobody can show": (
        {"messages": [user([{"type": "tool_result", "content": [{"type": "document"}]}])]},
        "body.messages.0.content.0.content.0.type",
    ),
    "tools change in a user's message": ({"messages": [user([{"type": "tool_removal"}])]}, "body.messages.0"),
    "change without a tool": ({"messages": [system([{"type": "tool_removal"}])]}, "body.messages.0.content.0"),
    "change of another kind": (
        {"messages": [change("tool_addition", {"type": "custom"})]},
        "body.messages.0.content.0.tool.type",
    ),
    "system is a number": ({"system": 5}, "body.system"),
    "tools are no list": ({"tools": "x"}, "body.tools"),
    "tool without a schema": ({"tools": [{"name": "f"}]}, "body.tools.0.input_schema"),
    "tool of another server": ({"tools": [{"type": "web_search", "name": "s"}]}, "body.tools.0.input_schema"),
    "strict is text": ({"tools": [{**FIND, "strict": "yes"}]}, "body.tools.0.strict"),
    "choice is text": ({"tools": [FIND], "tool_choice": "auto"}, "body.tool_choice"),
    "choice of another kind": ({"tools": [FIND], "tool_choice": {"type": "maybe"}}, "body.tool_choice.type"),
    "choice without a name": ({"tools": [FIND], "tool_choice": {"type": "tool"}}, "body.tool_choice"),
    "unknown thinking": ({"thinking": {"type": "deep"}}, "body.thinking.type"),
    "thinking without a budget": ({"thinking": {"type": "enabled"}}, "body.thinking.budget_tokens"),
    "small budget": ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "body.thinking.budget_tokens"),
    "budget over the limit": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "body"),
    "unknown effort": ({"output_config": {"effort": "huge"}}, "body.output_config.effort"),
    "unknown format": ({"output_config": {"format": {"type": "json"}}}, "body.output_config.format.type"),
    "format without a schema": (
        {"output_config": {"format": {"type": "json_schema"}}},
        "body.output_config.format.schema",
    ),
    "five stops": ({"stop_sequences": list("abcde")}, "body.stop_sequences"),
    "empty stop": ({"stop_sequences": ["a", ""]}, "body.stop_sequences[1]"),
    "stops are text": ({"stop_sequences": "x"}, "body.stop_sequences"),
    "metadata is a number": ({"metadata": 5}, "body.metadata"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_by_its_path(name: str) -> None:
    spoiled, path = BAD[name]
    with pytest.raises(InvalidField) as caught:
        messages.parse(body(**spoiled))
    assert caught.value.param == path


def test_a_named_tool_must_be_there() -> None:
    with pytest.raises(BadRequest, match="The tool with name 'nope' is not found in the tools list"):
        messages.parse(body(tools=[FIND], tool_choice={"type": "tool", "name": "nope"}))
