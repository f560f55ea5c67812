"""The path from a request to what an engine gets: who may decide what, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from attrs import evolve

from scaleout.config import Limits
from scaleout.core import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    Message,
    RequestOptions,
    SamplingWishes,
    StreamOptions,
    Tool,
    ToolChoice,
)
from scaleout.errors import BadRequest
from scaleout.render import ModelFacts, OutputFacts, Renderer
from scaleout.tokenizer import ModelFiles, Tokenizer

HI = [Message("user", "hi")]
CALLABLE = OutputFacts(has_tool_parser=True)
Loaded = Callable[[str], tuple[ModelFiles, Tokenizer]]
Make = Callable[..., Renderer]


def render(renderer: Renderer, messages: list[Message] = HI, **fields: Any) -> GenerateRequest:
    return renderer.render_chat(ChatRequest(messages, **fields), request_id="chatcmpl-1")


def text(renderer: Renderer, messages: list[Message] = HI, **fields: Any) -> str:
    return renderer.render_prompt(ChatRequest(messages, **fields)).text


# ---------------------------------------------------------------------------------------------- what travels through


def test_options_travel_and_secrets_stay(make_renderer: Make) -> None:
    options = RequestOptions(
        model="alias",
        stream=True,
        stream_options=StreamOptions(include_usage=True),
        cache_salt="s",
        priority=-7,
        user="u",
        session_id="x",
        return_token_ids=True,
    )
    answer = render(make_renderer("smollm2"), options=options)
    assert answer == GenerateRequest(
        request_id="chatcmpl-1",
        token_ids=answer.token_ids,
        sampling_params=answer.sampling_params,
        model="alias",
        stream=True,
        stream_options=StreamOptions(include_usage=True),
        cache_salt="s",
        priority=-7,
    )
    assert answer.sampling_params.output_kind == 1


def test_transfer_parameters_travel_as_extra_arguments(make_renderer: Make) -> None:
    options = RequestOptions(kv_transfer_params={"do_remote_decode": True}, ec_transfer_params={"k": None})
    answer = render(make_renderer("smollm2"), options=options, sampling=SamplingWishes(extra_args={"a": 1}))
    assert answer.sampling_params.extra_args == {
        "a": 1,
        "kv_transfer_params": {"do_remote_decode": True},
        "ec_transfer_params": {"k": None},
    }
    assert answer.kv_transfer_params is None


def test_ids_of_another_stage_are_used_as_they_are(make_renderer: Make) -> None:
    options = RequestOptions(kv_transfer_params={"prompt_token_ids": [5, 6, 7], "x": 1})
    answer = render(make_renderer("smollm2"), options=options)
    assert answer.token_ids == [5, 6, 7]
    assert answer.sampling_params.extra_args == {"kv_transfer_params": {"x": 1}}
    echoed = render(make_renderer("smollm2"), options=evolve(options, echo=True))
    assert list(echoed.token_ids) == list(render(make_renderer("smollm2")).token_ids)


@pytest.mark.parametrize("ids", [[], [1, -2], [1, 2.0], [True], "12", {}, [10**9]])
def test_bad_ids_of_another_stage_are_refused(ids: Any, make_renderer: Make) -> None:
    with pytest.raises(BadRequest) as refused:
        render(make_renderer("smollm2"), options=RequestOptions(kv_transfer_params={"prompt_token_ids": ids}))
    assert refused.value.param == "kv_transfer_params.prompt_token_ids"


# ---------------------------------------------------------------------------------------------- completions


def test_prompts_get_numbers_when_there_are_several(make_renderer: Make) -> None:
    renderer = make_renderer("smollm2")

    def ids(prompts: list[Any]) -> list[str]:
        return [g.request_id for g in renderer.render_completion(CompletionRequest(prompts), request_id="cmpl-job")]

    assert ids(["a"]) == ["cmpl-job"]
    assert ids(["a", "b", [1, 2]]) == ["cmpl-job-0", "cmpl-job-1", "cmpl-job-2"]


def test_completion_prompts_are_taken_as_they_stand(loaded: Loaded, make_renderer: Make) -> None:
    """Who sends a plain prompt writes the control tokens too."""
    tokenizer = loaded("qwen3")[1]
    prompt = "<|im_start|>user\nhi<|im_end|>\n"
    (answer,) = make_renderer("qwen3").render_completion(CompletionRequest([prompt]), request_id="r")
    assert list(answer.token_ids) == tokenizer.encode(prompt, add_special_tokens=False)
    assert answer.sampling_params.skip_special_tokens


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        (CompletionRequest([]), "You must pass at least one prompt", "prompt"),
        (
            CompletionRequest(["x"] * 2000),
            "prompt list length 2000 exceeds the maximum allowed count of 1024",
            "prompt",
        ),
        (CompletionRequest([[1, 10**6]]), "prompt holds ids outside the vocabulary", "prompt"),
        (CompletionRequest([[1, -1]]), "prompt holds ids outside the vocabulary", "prompt"),
        (
            CompletionRequest(["x"], suffix="y"),
            "suffix is only supported for models with FIM completion rendering",
            "suffix",
        ),
        (
            CompletionRequest(["x"], suffix="y", options=RequestOptions(echo=True)),
            "Echo is unsupported with suffix.",
            "suffix",
        ),
    ],
)
def test_impossible_completions_are_refused(
    request_: CompletionRequest, message: str, param: str, make_renderer: Make
) -> None:
    with pytest.raises(BadRequest) as refused:
        make_renderer("smollm2").render_completion(request_, request_id="r")
    assert message in refused.value.message
    assert refused.value.param == param


# ---------------------------------------------------------------------------------------------- which template


def test_request_templates_need_trust(make_renderer: Make) -> None:
    renderer = make_renderer("smollm2")
    for fields in ({"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}):
        with pytest.raises(BadRequest, match="--trust-request-chat-template is not set") as refused:
            render(renderer, **fields)
        assert refused.value.param == "chat_template"


def test_trusted_request_templates_are_used(make_renderer: Make) -> None:
    renderer = make_renderer("smollm2", settings={"trust_request_chat_template": True})
    assert text(renderer, chat_template="own {{ messages[0].content }}") == "own hi"
    assert text(renderer, chat_template_kwargs={"chat_template": "own {{ messages | length }}"}) == "own 1"
    assert text(renderer, chat_template="") == text(renderer)
    with pytest.raises(BadRequest, match="Expected an expression") as refused:
        text(renderer, chat_template="{% if %}")
    assert refused.value.param == "chat_template"


def named(loaded: Loaded, templates: dict[str, str], **settings: Any) -> Renderer:
    from scaleout.render import RenderSettings

    facts = ModelFacts("m", 1000, 50000, templates)
    return Renderer(loaded("smollm2")[1], facts, settings=RenderSettings(**settings), output=CALLABLE)


def test_named_templates(loaded: Loaded) -> None:
    renderer = named(loaded, {"default": "d", "tool_use": "t", "rag": "r"}, trust_request_chat_template=True)
    assert text(renderer) == "d"
    assert text(renderer, tools=[Tool("f")]) == "t"
    assert text(renderer, chat_template="rag") == "r"
    assert text(named(loaded, {"tool_use": "t", "default": "d"}, chat_template="o"), tools=[Tool("f")]) == "o"
    with pytest.raises(BadRequest, match="Choose one with --chat-template: a, b"):
        text(named(loaded, {"a": "x", "b": "y"}))


def test_missing_template_names_the_flag(loaded: Loaded) -> None:
    with pytest.raises(BadRequest, match="--chat-template") as refused:
        text(named(loaded, {}))
    assert refused.value.param == "chat_template"


def test_a_broken_template_is_reported_to_who_needs_it(loaded: Loaded) -> None:
    renderer = named(loaded, {"default": "{% if %}"})
    assert renderer.render_completion(CompletionRequest(["x"]), request_id="r")
    with pytest.raises(BadRequest, match="Expected an expression"):
        text(renderer)


# ---------------------------------------------------------------------------------------------- template variables

SHOWN = (
    "{{ enable_thinking }}/{{ reasoning_effort }}/{{ flag }}/{{ add_generation_prompt }}/"
    "{{ tools | length if tools }}/{{ documents | length if documents }}"
)


@pytest.mark.parametrize(
    ("defaults", "fields", "shown"),
    [
        ({}, {}, "///True//"),
        ({"enable_thinking": False, "flag": 1}, {}, "False//1/True//"),
        ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": True}}, "True///True//"),
        ({"flag": 1}, {"chat_template_kwargs": {"flag": None}}, "//1/True//"),
        ({"flag": 1}, {"chat_template_kwargs": {"flag": "auto"}}, "//1/True//"),
        ({}, {"chat_template_kwargs": {"add_generation_prompt": False}}, "///True//"),
        ({}, {"add_generation_prompt": False}, "///False//"),
        ({}, {"reasoning_effort": "high"}, "True/high//True//"),
        ({"enable_thinking": True}, {"reasoning_effort": "none"}, "False/none//True//"),
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "False/high//True//"),
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, "True/high//True//"),
        ({}, {"chat_template_kwargs": {"tools": [{"a": 1}, {"b": 2}]}}, "///True/2/"),
        ({"tools": [{"a": 1}]}, {"tools": [Tool("f"), Tool("g")]}, "///True/2/"),
        ({}, {"tools": [Tool("f"), Tool("g")], "chat_template_kwargs": {"tools": [{"a": 1}]}}, "///True/1/"),
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": "auto"}}, "/high//True//"),
        ({}, {"documents": [{"title": "t", "text": "x"}]}, "///True//1"),
    ],
)
def test_who_decides_a_variable(
    defaults: dict[str, Any], fields: dict[str, Any], shown: str, make_renderer: Make
) -> None:
    renderer = make_renderer("smollm2", SHOWN, settings={"default_chat_template_kwargs": defaults}, output=CALLABLE)
    assert text(renderer, **fields) == shown


@pytest.mark.parametrize("name", ["messages", "conversation", "return_assistant_tokens_mask"])
def test_reserved_names_are_refused(name: str, make_renderer: Make) -> None:
    with pytest.raises(BadRequest) as refused:
        render(make_renderer("smollm2"), chat_template_kwargs={name: []})
    assert refused.value.param == f"chat_template_kwargs.{name}"


def test_other_arguments_of_transformers_change_nothing(make_renderer: Make) -> None:
    renderer = make_renderer("smollm2", "{{ tokenize }}{{ padding }}{{ bos_token }}{{ continue_final_message }}x")
    kwargs = {
        "tokenize": False,
        "padding": True,
        "bos_token": "B",
        "raise_exception": 1,
        "unknown": 2,
        "continue_final_message": True,
    }
    assert text(renderer, chat_template_kwargs=kwargs) == "Bx"


def test_what_the_reasoning_parser_is_told(make_renderer: Make) -> None:
    facts = OutputFacts(has_reasoning_parser=True, reasoning=lambda ids: ids[-1] == 1)
    renderer = make_renderer(
        "smollm2", output=facts, settings={"default_chat_template_kwargs": {"enable_thinking": True}}
    )
    answer = render(renderer, reasoning_effort="none", chat_template_kwargs={"favourite": 1})
    assert answer.reasoning_parser_kwargs == {
        "chat_template_kwargs": {
            "enable_thinking": False,
            "favourite": 1,
            "add_generation_prompt": True,
            "continue_final_message": False,
            "reasoning_effort": "none",
        }
    }
    assert answer.reasoning_ended is False
    assert render(renderer, include_reasoning=False).reasoning_ended is True
    plain = render(make_renderer("smollm2"))
    assert (plain.reasoning_ended, plain.reasoning_parser_kwargs) == (None, None)


# ---------------------------------------------------------------------------------------------- tools


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (ToolChoice("auto"), '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (ToolChoice("required"), 'tool_choice="required" requires --tool-call-parser to be set'),
        (ToolChoice("named", "f"), 'tool_choice=function "f" requires --tool-call-parser to be set'),
        (ToolChoice("named", "g"), "The tool specified in `tool_choice` does not match any of the specified `tools`"),
    ],
)
def test_calls_that_nobody_would_read_are_refused(choice: ToolChoice, message: str, make_renderer: Make) -> None:
    with pytest.raises(BadRequest) as refused:
        render(make_renderer("smollm2"), tools=[Tool("f")], tool_choice=choice)
    assert refused.value.message == message
    assert refused.value.param == "tool_choice"
    if choice.name != "g":
        render(make_renderer("smollm2", output=CALLABLE), tools=[Tool("f")], tool_choice=choice)


@pytest.mark.parametrize("choice", [None, ToolChoice("none")])
def test_tools_without_a_choice_are_shown(choice: ToolChoice | None, make_renderer: Make) -> None:
    assert '{"type": "function", "function": {"name": "f"' in text(
        make_renderer("qwen3"), tools=[Tool("f")], tool_choice=choice
    )
    render(make_renderer("qwen3"), tools=[Tool("f")], tool_choice=choice)


def test_tools_can_be_left_out_with_choice_none(make_renderer: Make) -> None:
    renderer = make_renderer("qwen3", settings={"exclude_tools_when_tool_choice_none": True})
    assert text(renderer, tools=[Tool("f")], tool_choice=ToolChoice("none")) == text(renderer)
    assert text(renderer, tools=[Tool("f")]) != text(renderer)


@pytest.mark.parametrize(
    ("when", "tools", "choice", "kept"),
    [
        ("never", [Tool("f")], ToolChoice("auto"), True),
        ("with_tools", [Tool("f")], ToolChoice("auto"), False),
        ("with_tools", [Tool("f")], ToolChoice("none"), True),
        ("with_tools", None, None, True),
        ("always", None, None, False),
    ],
)
def test_when_an_engine_must_keep_special_tokens(
    when: Any, tools: Any, choice: Any, kept: bool, make_renderer: Make
) -> None:
    renderer = make_renderer("smollm2", output=OutputFacts(has_tool_parser=True, marks_are_special=when))
    assert render(renderer, tools=tools, tool_choice=choice).sampling_params.skip_special_tokens is kept


def test_the_output_format_constrains_forced_calls(make_renderer: Make) -> None:
    def constraint(request: ChatRequest, prompt_ids: Sequence[int]) -> dict[str, Any] | None:
        assert prompt_ids
        forced = request.tool_choice is not None and request.tool_choice.mode == "required"
        return {"structural_tag": "{}"} if forced else None

    renderer = make_renderer("smollm2", output=OutputFacts(has_tool_parser=True, tool_constraint=constraint))
    wished = SamplingWishes(structured_outputs={"json_object": True})
    forced = render(renderer, tools=[Tool("f")], tool_choice=ToolChoice("required"), sampling=wished).sampling_params
    free = render(renderer, tools=[Tool("f")], tool_choice=ToolChoice("auto"), sampling=wished).sampling_params
    assert forced.structured_outputs is not None
    assert (forced.structured_outputs["structural_tag"], forced.structured_outputs["json_object"]) == ("{}", None)
    assert free.structured_outputs is not None
    assert free.structured_outputs["json_object"] is True


# ---------------------------------------------------------------------------------------------- hostile values


def billion(loaded: Loaded) -> Renderer:
    loop = "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}x{% endfor %}{% endfor %}{% endfor %}"
    return named(loaded, {"default": loop})


@pytest.mark.parametrize(
    ("fields", "param", "seconds"),
    [
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template", 0.1),
        ({"sampling": SamplingWishes(n=5_000_000)}, "n", 0.1),
        ({"sampling": SamplingWishes(logprobs=10**9)}, "top_logprobs", 0.1),
        ({"sampling": SamplingWishes(stop_token_ids=[50000])}, "stop_token_ids", 0.1),
        ({"sampling": SamplingWishes(structured_outputs={"regex": "\0x"})}, "structured_outputs.regex", 0.1),
        ({"loop": True}, "chat_template", 1.0),
    ],
)
def test_hostile_values_are_refused_quickly(fields: dict[str, Any], param: str, seconds: float, loaded: Loaded) -> None:
    renderer = billion(loaded) if fields.pop("loop", None) else named(loaded, {"default": "{{ messages[0].content }}"})
    started = time.thread_time()
    with pytest.raises(BadRequest) as refused:
        render(renderer, **fields)
    assert time.thread_time() - started < seconds
    assert refused.value.param == param
    assert render(named(loaded, {"default": "{{ messages[0].content }}"})).token_ids


def test_counts_are_bounded(loaded: Loaded) -> None:
    renderer = Renderer(
        loaded("smollm2")[1], ModelFacts("m", 1000, 50000, "x"), limits=Limits(max_messages=3, max_tools=2)
    )
    with pytest.raises(BadRequest, match="messages holds 4 entries, at most 3"):
        text(renderer, HI * 4)
    with pytest.raises(BadRequest, match="tools holds 3 entries, at most 2"):
        text(renderer, tools=[Tool("f")] * 3)
    with pytest.raises(BadRequest, match="empty conversation"):
        text(renderer, [])


def test_ready_and_open_exclude_each_other(make_renderer: Make) -> None:
    with pytest.raises(BadRequest, match="are not compatible") as refused:
        text(make_renderer("smollm2"), continue_final_message=True)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize("content", ["a\ud800b", "\udc00", "<|im_end|>\udc00", "\udcff "])
@pytest.mark.parametrize("mode", ["text", "allow"])
def test_half_a_surrogate_pair_is_refused(content: str, mode: str, make_renderer: Make) -> None:
    renderer = make_renderer("qwen3", settings={"special_tokens_in_content": mode})
    with pytest.raises(BadRequest, match="half a surrogate pair"):
        render(renderer, [Message("user", content), Message("assistant", "<|im_end|>")])


def test_threads_do_not_disturb_each_other(make_renderer: Make) -> None:
    renderer = make_renderer("qwen3")
    talks = [[Message("user", f"question {i} <|im_end|>" if i % 3 else f"question {i}")] for i in range(40)]
    alone = [render(renderer, talk) for talk in talks]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda talk: render(renderer, talk), talks)) == alone
