"""Prompt ids equal transformers' `apply_chat_template` for the same input, on real models' templates and tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleout.core import ChatRequest, Message, Tool, ToolCall, ToolChoice
from scaleout.errors import BadRequest
from scaleout.render import Renderer

from .conftest import MODELS, OUT_OF_TEMPLATE

transformers = pytest.importorskip("transformers")

TOOLS = [
    Tool(
        "get_weather",
        'Current weather <for> a city & "more".',
        {"type": "object", "properties": {"città": {"type": "string"}}},
    ),
    Tool("ping"),
]

Chat = list[tuple[str, str]]

TEXTS = st.text(
    st.one_of(st.sampled_from(" \n\t<>|'\"{}\\"), st.characters(exclude_categories=["Cs"], max_codepoint=0x1F6FF)),
    max_size=40,
)


def as_dicts(messages: list[Message]) -> list[dict[str, Any]]:
    """What a caller of transformers would write for the same conversation."""
    dicts = []
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            one["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in message.tool_calls
            ]
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
        if message.reasoning is not None:
            one["reasoning"] = one["reasoning_content"] = message.reasoning
        dicts.append(one)
    return dicts


def tool_dicts(tools: list[Tool]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]


@pytest.fixture(scope="module")
def reference(model_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """`reference(name)`: transformers' tokenizer of a model."""

    @cache
    def load(name: str) -> Any:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder(name))
        tokenizer.chat_template = tokenizer.chat_template or OUT_OF_TEMPLATE
        return tokenizer

    return load


@pytest.fixture(params=MODELS)
def both(request: Any, make_renderer: Callable[..., Renderer], reference: Callable[[str], Any]) -> tuple[Renderer, Any]:
    from scaleout.render import OutputFacts

    renderer = make_renderer(request.param, output=OutputFacts(has_tool_parser=True))
    return renderer, reference(request.param)


def check_same(both: tuple[Renderer, Any], request: ChatRequest, **arguments: Any) -> None:
    """Same ids, or a refusal on both sides."""
    renderer, reference = both
    try:
        expected = reference.apply_chat_template(
            as_dicts(list(request.messages)),
            tools=tool_dicts(list(request.tools)) if request.tools else None,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            return_dict=False,
            **arguments,
        )
    except (TypeError, ValueError, jinja2.TemplateError):
        expected = None
    if expected is None:
        with pytest.raises(BadRequest):
            renderer.render_chat(request, request_id="r")
        return
    assert list(renderer.render_chat(request, request_id="r").token_ids) == expected


ARGUMENTS = {"città": "Oslo", "n": 2.0, "x": [1, None, "é<"]}
U, A, S = "user", "assistant", "system"
CONVERSATIONS: dict[str, list[Message]] = {
    "one turn": [Message(U, "What is 2+2?")],
    "system": [Message(S, "You are a lighthouse keeper."), Message(U, "Hello <b>there</b>")],
    "three turns": [
        Message(U, "Hi"),
        Message(A, "Hello!"),
        Message(U, "Grüße, 世界 😀"),
        Message(A, " ok\n"),
        Message(U, "\n\nbye "),
    ],
    "system in the middle": [Message(U, "one"), Message(A, "two"), Message(S, "now count down"), Message(U, "three")],
    "user after user": [Message(U, "one"), Message(U, "two")],
    "strange role": [Message("critic", "No."), Message(U, "Yes.")],
    "empty texts": [Message(U, ""), Message(A, ""), Message(U, " ")],
    "thoughts": [Message(U, "Think."), Message(A, "Done.", reasoning="Let me see.\n"), Message(U, "And?")],
    "thoughts in the text": [Message(U, "Think."), Message(A, "<think>\nhm\n</think>\n\nDone."), Message(U, "And?")],
    "call and result": [
        Message(U, "Weather in Oslo?"),
        Message(A, "", tool_calls=[ToolCall("c1", "get_weather", ARGUMENTS), ToolCall("c2", "ping", {})]),
        Message("tool", '{"t": -3.5}', tool_call_id="c1"),
        Message("tool", "pong", tool_call_id="c2"),
        Message(A, "Cold."),
        Message(U, "Thanks"),
    ],
    "call last": [
        Message(U, "Go"),
        Message(A, "On it.", tool_calls=[ToolCall("c", "ping", {"a": {"b": [True, 1e100]}})]),
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_conversations(both: tuple[Renderer, Any], name: str, add_generation_prompt: bool) -> None:
    check_same(both, ChatRequest(CONVERSATIONS[name], add_generation_prompt=add_generation_prompt))


@pytest.mark.parametrize("name", ["one turn", "system", "call and result"])
def test_tools(both: tuple[Renderer, Any], name: str) -> None:
    check_same(both, ChatRequest(CONVERSATIONS[name], tools=TOOLS, tool_choice=ToolChoice("auto")))


@pytest.mark.parametrize("content", ["The answer is", "half a word ", "line\n", "<think>\nso far"])
def test_continued_answers(both: tuple[Renderer, Any], content: str) -> None:
    messages = [Message(U, "q"), Message(A, content)]
    check_same(both, ChatRequest(messages, add_generation_prompt=False, continue_final_message=True))


@pytest.mark.parametrize("thinking", [True, False])
def test_template_arguments(both: tuple[Renderer, Any], thinking: bool) -> None:
    request = ChatRequest(
        [Message(U, "7*8?")], chat_template_kwargs={"enable_thinking": thinking, "favourite": ["blue"]}
    )
    check_same(both, request, enable_thinking=thinking, favourite=["blue"])


@pytest.mark.parametrize("name", MODELS)
def test_any_text(name: str, make_renderer: Callable[..., Renderer], reference: Callable[[str], Any]) -> None:
    pair = make_renderer(name, settings={"special_tokens_in_content": "allow"}), reference(name)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(TEXTS, min_size=1, max_size=5), st.booleans())
    def same(texts: list[str], ready: bool) -> None:
        messages = [Message(U if i % 2 == 0 else A, text) for i, text in enumerate(texts)]
        check_same(pair, ChatRequest(messages, add_generation_prompt=ready))

    same()
