"""The self-test of the output format, on the templates of real models and on small ones with the habits of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from serving import Server, serving, until

from scaleout.app import make_app
from scaleout.config import Mode, ModeConfig
from scaleout.pipeline.self_test import examine_format
from scaleout.pipeline.stages import Front, load_text
from scaleout.routes.keys import STAGES

ALL_PASS = {"content": "PASS", "reasoning": "PASS", "one call": "PASS", "two calls": "PASS"}


def front_of(model: Path, **settings: Any) -> Front:
    front = load_text(ModeConfig(Mode.RENDER_ONLY, model=str(model), tokenizer_backend="hf", **settings)).front
    assert front is not None
    return front


def verdicts(front: Front) -> dict[str, str]:
    return {finding.capability: finding.verdict for finding in examine_format(front)}


def test_the_format_of_a_model_reads_its_own_template(tiny_model: Callable[..., Path]) -> None:
    assert verdicts(front_of(tiny_model("qwen3"))) == ALL_PASS


def test_what_a_template_does_not_write_is_unknown(tiny_model: Callable[..., Path]) -> None:
    assert verdicts(front_of(tiny_model("deepseek_v3"))) == {**ALL_PASS, "reasoning": "UNKNOWN"}
    only_text = {**dict.fromkeys(ALL_PASS, "UNKNOWN"), "content": "PASS"}
    assert verdicts(front_of(tiny_model("gemma3"), tool_call_parser="pythonic")) == only_text


def test_a_format_that_does_not_fit_fails_and_says_how(
    tiny_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    front = front_of(tiny_model("qwen3"), tool_call_parser="llama3_json", reasoning_parser="think")
    with caplog.at_level(logging.INFO, logger="scaleout.pipeline.self_test"):
        findings = {finding.capability: finding for finding in examine_format(front)}
    found = {name: finding.verdict for name, finding in findings.items()}
    assert found == {**ALL_PASS, "one call": "FAIL", "two calls": "FAIL"}
    assert "<tool_call>" in findings["one call"].reason
    assert "calls=[]" in findings["one call"].reason
    assert [(record.levelname, record.getMessage()[:24]) for record in caplog.records] == [
        ("INFO", "self-test: content: PASS"),
        ("INFO", "self-test: reasoning: PA"),
        ("WARNING", "self-test: one call: FAI"),
        ("WARNING", "self-test: two calls: FA"),
    ]


def test_a_half_that_was_not_chosen_shows(tiny_model: Callable[..., Path]) -> None:
    front = front_of(tiny_model("qwen3"), tool_call_parser="hermes")
    assert verdicts(front) == {**ALL_PASS, "content": "FAIL", "reasoning": "FAIL"}


TURN = """
{%- for m in messages %}
{%- if m.role == "user" %}<|im_start|>user
{{ m.content }}<|im_end|>
{% else %}<|im_start|>assistant
TURN<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
OPENING{% endif %}"""
HERMES = """{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
THOUGHT = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"


@pytest.mark.parametrize(
    ("turn", "opening", "reasoning"),
    [
        ("{% if m.reasoning_content %}" + THOUGHT + "{% endif %}" + HERMES, "", "PASS"),
        ("{% if m.reasoning_content %}" + THOUGHT + "{% endif %}" + HERMES, "<think>\n", "PASS"),
        ("{% if m.reasoning_content %}" + THOUGHT + "{% endif %}" + HERMES, "<think>\n\n</think>\n\n", "PASS"),
        ("{% if m.tool_calls and m.reasoning_content %}" + THOUGHT + "{% endif %}" + HERMES, "<think>\n", "PASS"),
        (HERMES, "<think>\n", "UNKNOWN"),
    ],
    ids=["plain", "opened thought", "closed thought", "thoughts before calls only", "thoughts dropped"],
)
def test_prompts_that_open_more_than_a_turn(
    tiny_model: Callable[..., Path], turn: str, opening: str, reasoning: str
) -> None:
    template = TURN.replace("TURN", turn).replace("OPENING", opening)
    front = front_of(tiny_model("qwen3"), chat_template=template, tool_call_parser="hermes", reasoning_parser="think")
    assert verdicts(front) == {**ALL_PASS, "reasoning": reasoning}


def test_calls_whose_ids_tell_their_names(family_tokenizer: Callable[[str], Path]) -> None:
    calls = (
        "<|tool_calls_section_begin|>{% for call in m.tool_calls %}<|tool_call_begin|>{{ call.id }}"
        "<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        "<|tool_calls_section_end|>"
    )
    turn = f"<think>{{{{ m.reasoning_content }}}}</think>{{{{ m.content }}}}{{% if m.tool_calls %}}{calls}{{% endif %}}"
    template = TURN.replace("TURN", turn).replace("OPENING", "")
    front = front_of(
        family_tokenizer("kimi_k2"), chat_template=template, tool_call_parser="kimi_k2", reasoning_parser="kimi_k2"
    )
    assert verdicts(front) == ALL_PASS


def test_messages_with_headers_and_one_call_at_most(family_tokenizer: Callable[[str], Path]) -> None:
    template = """
{%- for m in messages -%}
{%- if m.role == "user" %}<|start|>user<|message|>{{ m.content }}<|end|>
{%- else %}
{%- if m.reasoning_content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception("One call at a time. No more.") }}{% endif -%}
{% set call = m.tool_calls[0].function -%}
<|start|>assistant<|channel|>commentary to=functions.{{ call.name }} <|constrain|>json<|message|>{{ call.arguments | tojson }}<|call|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
    front = front_of(family_tokenizer("gpt_oss"), chat_template=template)
    findings = {finding.capability: finding for finding in examine_format(front)}
    assert {name: finding.verdict for name, finding in findings.items()} == {**ALL_PASS, "two calls": "UNKNOWN"}
    assert "One call at a time" in findings["two calls"].reason


def test_a_prompt_that_hides_the_turn_says_nothing(tiny_model: Callable[..., Path]) -> None:
    template = "{{ messages | length }}{{ messages[-1].content }}"
    front = front_of(tiny_model("qwen3"), chat_template=template, tool_call_parser="hermes")
    assert set(verdicts(front).values()) == {"UNKNOWN"}


def test_without_a_template_or_a_format_there_is_nothing_to_test(
    tiny_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    assert set(verdicts(front_of(tiny_model("gptoss"))).values()) == {"UNKNOWN"}
    assert verdicts(front_of(tiny_model("llama2"))) == {}
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_nothing_is_raised_whatever_happens(tiny_model: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = None
    front = evolve(front_of(tiny_model("qwen3")), renderer=broken)
    assert examine_format(front) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_it_takes_a_moment(tiny_model: Callable[..., Path]) -> None:
    front = front_of(tiny_model("qwen3"))
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        assert verdicts(front) == ALL_PASS
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 0.05


def test_a_server_shows_what_it_found(tiny_model: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    config = ModeConfig(Mode.RENDER_ONLY, model=str(tiny_model("qwen3")), tokenizer_backend="hf", access_log=False)

    def found(server: Server) -> None:
        server.within(lambda: until(lambda: bool(server.app[STAGES].findings)))

    with caplog.at_level(logging.INFO, logger="scaleout.pipeline.self_test"), serving(make_app(config)) as server:
        found(server)
        info = server.get("/server_info").json
    assert info["output_format"] == "qwen3"
    assert info["self_test"] == ALL_PASS
    assert len([record for record in caplog.records if record.name == "scaleout.pipeline.self_test"]) == 4


def test_a_server_that_loads_text_late_tests_it_then(tiny_model: Callable[..., Path]) -> None:
    model = str(tiny_model("qwen3"))
    config = ModeConfig(
        Mode.RENDER_ONLY, model=model, served_model_names=("m",), tokenizer_backend="hf", access_log=False
    )
    tokens_only = evolve(config, mode=Mode.TOKENS_ONLY, engine=evolve(config.engine, backend="echo"))
    with serving(make_app(tokens_only)) as server:
        assert server.get("/server_info").json["self_test"] == {}
        assert server.get("/server_info").json["output_format"] is None
        assert server.post("/v1/completions/render", {"prompt": "x"}).status == 200
        server.within(lambda: until(lambda: bool(server.app[STAGES].findings)))
        assert server.get("/server_info").json["self_test"] == ALL_PASS
