"""Messages as templates see them."""

# ruff: noqa: E501 - a message and both its forms a line

from __future__ import annotations

from typing import Any

import pytest

from scaleout.core import Message, Part, Tool, ToolCall
from scaleout.errors import BadRequest
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.content_format import ContentFormat
from scaleout.render.messages import TemplateView, lead_with_system, messages_to_dicts, tools_to_dicts

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def seen(*messages: Message, source: str = PLAIN, content_format: ContentFormat | None = None) -> list[dict[str, Any]]:
    return messages_to_dicts(messages, TemplateView.of(ChatTemplate(source), content_format), "m")


def content(message: Message, content_format: ContentFormat, source: str = PLAIN) -> Any:
    return seen(message, source=source, content_format=content_format)[0]["content"]


@pytest.mark.parametrize(
    ("message", "as_string", "as_parts"),
    [
        (Message("user", "hi"), "hi", [{"type": "text", "text": "hi"}]),
        (Message("user", ""), "", [{"type": "text", "text": ""}]),
        (Message("user", []), "", []),
        (Message("assistant", None), "", []),
        (
            Message("user", [Part("text", "a"), Part("text", ""), Part("text", " b\n")]),
            "a\n b\n",
            [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": " b\n"}],
        ),
        (Message("user", [Part("text", "a", {"cache": 1})]), "a", [{"type": "text", "text": "a", "cache": 1}]),
        (Message("tool", "r", tool_call_id="c"), "r", "r"),
        (Message("tool", [Part("text", "a"), Part("text", "b")]), "a\nb", "a\nb"),
        (
            Message("tool", [Part("text", "a"), Part("tool_reference", None, {"name": "f"})]),
            [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "f"}],
            [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "f"}],
        ),
        (
            Message("system", "x-anthropic-billing-header: 1\nBe kind."),
            "Be kind.",
            [{"type": "text", "text": "Be kind."}],
        ),
        (
            Message("system", [Part("text", "x-anthropic-billing-header: 1"), Part("text", "Be kind.")]),
            "Be kind.",
            [{"type": "text", "text": "Be kind."}],
        ),
        (
            Message("user", "x-anthropic-billing-header"),
            "x-anthropic-billing-header",
            [{"type": "text", "text": "x-anthropic-billing-header"}],
        ),
    ],
)
def test_content(message: Message, as_string: Any, as_parts: Any) -> None:
    assert content(message, "string") == as_string
    assert content(message, "openai") == as_parts


def test_null_stays_null_where_the_template_asks_for_it() -> None:
    asking = "{% for m in messages %}{{ 'x' if m.content is none else m.content }}{% endfor %}"
    assert content(Message("assistant", None), "string", asking) is None


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "prompt_embeds"])
def test_media_on_a_text_model_is_refused(kind: str) -> None:
    with pytest.raises(BadRequest, match=r"^m is not a multimodal model$"):
        seen(Message("user", [Part("text", "see"), Part(kind, None, {kind: {"url": "data:,"}})]))


def test_keys_come_in_one_order() -> None:
    message = Message(
        "assistant",
        "y",
        name="n",
        reasoning="r",
        tool_calls=[ToolCall("c1", "f", {"b": 1.0, "a": [1e3]})],
        extra={"task": "t", "role": "evil"},
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"b": 1.0, "a": [1000.0]}}}
    (found,) = seen(message)
    assert list(found.items()) == [
        ("role", "assistant"),
        ("content", "y"),
        ("name", "n"),
        ("tool_calls", [call]),
        ("reasoning", "r"),
        ("reasoning_content", "r"),
        ("task", "t"),
    ]


def test_thoughts_have_the_name_that_the_template_reads() -> None:
    thought = Message("assistant", "", reasoning="r")
    assert "thinking" not in seen(thought)[0]
    assert seen(thought, source="{{ messages[0].thinking }}")[0]["thinking"] == "r"
    assert seen(Message("user", "", reasoning="r"))[0] == {"role": "user", "content": "", "reasoning": "r"}


def test_calls_without_an_id_have_none() -> None:
    assert list(seen(Message("assistant", "", tool_calls=[ToolCall(None, "f", {})]))[0]["tool_calls"][0]) == [
        "type",
        "function",
    ]


def test_arguments_are_objects_and_text_where_text_is_joined() -> None:
    """The prompt that the engines of mudler/vllm.cpp#526 should have made, and DeepSeek's way of writing the same."""
    call = ToolCall("c1", "lookup", {"city": "Paris", "fresh": False, "limit": None, "r": 2.0})
    messages = seen(
        Message("user", "Look up Paris"), Message("assistant", "", tool_calls=[call]), Message("tool", "ok")
    )
    looped = (
        "{% for m in messages %}\n[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}<call {{ c.function.name }}"
        "{% for k, v in c.function.arguments|items %} {{ k }}={{ v | tojson }}{% endfor %}>{% endfor %}{{ '\\n' }}\n{%- endfor %}"
    )
    assert ChatTemplate(looped).render({"messages": messages}) == (
        '[user]Look up Paris\n[assistant]<call lookup city="Paris" fresh=false limit=null r=2.0>\n[tool]ok\n'
    )
    joined = "{{ 'a:' + messages[1].tool_calls[0].function.arguments + ';' }}"
    assert (
        ChatTemplate(joined).render({"messages": messages})
        == 'a:{"city": "Paris", "fresh": false, "limit": null, "r": 2.0};'
    )


def test_empty_arguments_loop_over_nothing() -> None:
    messages = seen(Message("assistant", "", tool_calls=[ToolCall("c", "lookup", {})]))
    source = "<call {{ messages[0].tool_calls[0].function.name }}{% for k in messages[0].tool_calls[0].function.arguments|items %}x{% endfor %}>"
    assert ChatTemplate(source).render({"messages": messages}) == "<call lookup>"


SPEECH = [
    Message("system", "s1"),
    Message("user", "u"),
    Message("developer", "d", extra={"tools": [1]}),
    Message("system", [Part("text", "s2"), Part("text", "s3")]),
]


def test_developer_messages_become_one_system_message() -> None:
    assert seen(*SPEECH) == [{"role": "system", "content": "s1\n\nd\n\ns2\ns3"}, {"role": "user", "content": "u"}]
    assert seen(*SPEECH, content_format="openai")[0]["content"] == [{"type": "text", "text": "s1\n\nd\n\ns2\ns3"}]


def test_developer_messages_stay_where_the_template_knows_them() -> None:
    knows = "{% for m in messages %}{% if m.role == 'developer' %}{{ m.tools }}{% endif %}{% endfor %}"
    assert [m["role"] for m in seen(*SPEECH, source=knows)] == ["system", "user", "developer", "system"]
    assert seen(*SPEECH, source=knows)[2]["tools"] == [1]


def test_system_messages_are_only_merged_for_a_developers_sake() -> None:
    assert [m["content"] for m in seen(Message("system", "a"), Message("system", "b"))] == ["a", "b"]


def test_tools_have_all_keys_in_the_models_order() -> None:
    tools = [Tool("f", strict=True), Tool("g", "d", {"z": 1, "a": 2}, defer_loading=True)]
    assert [list(t["function"].items()) for t in tools_to_dicts(tools)] == [
        [("name", "f"), ("description", None), ("parameters", None), ("strict", True)],
        [("name", "g"), ("description", "d"), ("parameters", {"z": 1, "a": 2}), ("defer_loading", True)],
    ]
    assert [list(t) for t in tools_to_dicts(tools)] == [["type", "function"], ["type", "function", "defer_loading"]]


def test_system_messages_move_where_the_template_takes_none_inside() -> None:
    turns = [Message("system", "A"), Message("user", "q"), Message("system", [Part("text", "B"), Part("text", "C")])]
    assert lead_with_system(turns) == [Message("system", "A\n\nB\nC"), Message("user", "q")]
