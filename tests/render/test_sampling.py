"""Wishes and defaults → parameters that no engine has to refuse."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config import Limits
from scaleout.core import SamplingParams, SamplingWishes
from scaleout.errors import BadRequest
from scaleout.render.sampling import SamplingDefaults, SamplingRules

RULES = SamplingRules(Limits(), max_model_len=1000, vocab_size=500)


def decide(
    rules: SamplingRules = RULES, prompt_length: int = 10, stream: bool = False, **wishes: Any
) -> SamplingParams:
    return rules.decide(SamplingWishes(**wishes), prompt_length, stream=stream)


def test_nothing_wished_is_the_openai_default() -> None:
    assert decide() == SamplingParams(max_tokens=990, output_kind=2, skip_clone=True)


@pytest.mark.parametrize(
    ("wishes", "result"),
    [
        ({"stop": ["ten"]}, {"stop": ["ten"], "output_text_buffer_length": 2}),
        ({"stop": ["ten"], "include_stop_str_in_output": True}, {"output_text_buffer_length": 0}),
        (
            {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.3},
            {"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        ),
        ({"temperature": 0.004, "top_p": 0.5}, {"temperature": 0.01, "top_p": 0.5}),
        ({"seed": -1}, {"seed": None}),
        ({"stop_token_ids": [2, 17, 2]}, {"stop_token_ids": [2, 17]}),
        ({"logit_bias": {"10": 5, 11: -150.5, "12": 100}}, {"logit_bias": {10: 5.0, 11: -100.0, 12: 100.0}}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"logprobs": 3, "logprob_token_ids": [5, 6]}, {"logprobs": None, "logprob_token_ids": [5, 6]}),
        ({"prompt_logprobs": 0}, {"prompt_logprobs": 0, "skip_reading_prefix_cache": True}),
        ({"thinking_token_budget": -1}, {"thinking_token_budget": None}),
        ({"thinking_token_budget": 0}, {"thinking_token_budget": 0}),
        ({"top_k": -1}, {"top_k": -1}),
        ({"max_tokens": 16}, {"max_tokens": 16}),
        ({"max_tokens": 995}, {"max_tokens": 990}),
        ({"extra_args": {"a": [1, {"b": 2**64 - 1}]}}, {"extra_args": {"a": [1, {"b": 2**64 - 1}]}}),
        ({"extra_args": {}}, {"extra_args": None}),
    ],
)
def test_what_becomes_of_wishes(wishes: dict[str, Any], result: dict[str, Any]) -> None:
    params = decide(**wishes)
    assert {name: getattr(params, name) for name in result} == result


def test_stream_decides_the_kind_of_output() -> None:
    assert (decide(stream=True).output_kind, decide().output_kind) == (1, 2)


NAN = float("nan")
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 0}, "n", "n must be at least 1, got 0."),
    ({"n": 5_000_000}, "n", "n must be at most 16384, got 5000000."),
    ({"n": 2, "temperature": 0}, "n", "n must be 1 when using greedy sampling, got 2."),
    ({"presence_penalty": 2.1}, "presence_penalty", "presence_penalty must be in [-2, 2], got 2.1."),
    ({"frequency_penalty": NAN}, "frequency_penalty", "frequency_penalty must be in [-2, 2], got nan."),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "repetition_penalty must be greater than zero, got 0.0."),
    (
        {"repetition_penalty": float("inf")},
        "repetition_penalty",
        "repetition_penalty must be a finite number, got inf.",
    ),
    ({"temperature": 2.5}, "temperature", "temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)"),
    (
        {"temperature": NAN},
        "temperature",
        "temperature must be a finite number, got nan. (parameter=temperature, value=nan)",
    ),
    ({"top_p": 1.01}, "top_p", "top_p must be in (0, 1], got 1.01. (parameter=top_p, value=1.01)"),
    ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0"),
    ({"top_p": NAN}, "top_p", "top_p must be in (0, 1], got nan"),
    ({"top_k": -2}, "top_k", "top_k must be 0 (disable), or at least 1, got -2."),
    ({"min_p": 1.5}, "min_p", "min_p must be in [0, 1], got 1.5."),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
    ({"max_tokens": -5}, "max_tokens", "max_tokens must be at least 1, got -5. (parameter=max_tokens, value=-5)"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "min_tokens must be less than or equal to max_tokens=3, got 9."),
    ({"min_tokens": -1}, "min_tokens", "min_tokens must be greater than or equal to 0, got -1."),
    ({"stream_interval": 0}, "stream_interval", "stream_interval must be at least 1, got 0."),
    ({"stop": ["a", ""]}, "stop", "stop cannot contain an empty string."),
    ({"stop": ["a"] * 5}, "stop", "stop holds 5 strings, at most 4"),
    ({"stop": ["a" * 5000]}, "stop", "more than 4096 characters"),
    ({"bad_words": [""]}, "bad_words", "bad_words cannot contain an empty string. Got bad_words=['']"),
    ({"bad_words": ["a"] * 200}, "bad_words", "bad_words holds 200 words"),
    ({"logprobs": -2}, "logprobs", "`logprobs` must be a positive value or -1. (parameter=logprobs, value=-2)"),
    ({"logprobs": 10**9}, "logprobs", "Requested sample logprobs of 1000000000, which is greater than max allowed: 20"),
    ({"logprobs": -1}, "logprobs", "Requested sample logprobs of 500, which is greater than max allowed: 20"),
    (
        {"prompt_logprobs": 21},
        "prompt_logprobs",
        "Requested prompt logprobs of 21, which is greater than max allowed: 20",
    ),
    ({"stop_token_ids": [500]}, "stop_token_ids", "stop_token_ids holds ids outside the vocabulary of 500: 500."),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "outside the vocabulary of 500: -1."),
    ({"allowed_token_ids": [1, 999]}, "allowed_token_ids", "outside the vocabulary of 500: 999."),
    ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
    ({"logprob_token_ids": [10**9]}, "logprob_token_ids", "outside the vocabulary of 500: 1000000000."),
    ({"logit_bias": {"500": 1}}, "logit_bias", "outside the vocabulary of 500: 500."),
    (
        {"logit_bias": {"abc": 1}},
        "logit_bias",
        "logit_bias contains key(s) that cannot be converted to integer token IDs: ['abc']",
    ),
    (
        {"thinking_token_budget": -5},
        "thinking_token_budget",
        "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
    ),
    ({"extra_args": {"a": [2**64]}}, "extra_args.a.0", "an integer of more than 64 bits"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, regex"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "got json, regex"),
    ({"structured_outputs": {"regex": "\0a"}}, "structured_outputs.regex", "must not hold the character U+0000"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "must be a string"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "must be a list of strings"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice", "must be a list of strings"),
    ({"structured_outputs": {"json": [1]}}, "structured_outputs.json", "must be a JSON schema"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "not empty"),
]


@pytest.mark.parametrize(("wishes", "param", "text"), REFUSED)
def test_impossible_values_are_refused_by_name(wishes: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decide(**wishes)
    assert refused.value.param == param
    assert text in refused.value.message


def test_deep_schemas_are_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(BadRequest, match="nested deeper than 128") as refused:
        decide(structured_outputs={"json": schema})
    assert refused.value.param == "structured_outputs.json"


def test_constraint_travels_with_all_keys() -> None:
    assert decide(structured_outputs={"regex": "[0-9]", "whitespace_pattern": " "}).structured_outputs == {
        "json": None,
        "regex": "[0-9]",
        "choice": None,
        "grammar": None,
        "json_object": None,
        "disable_any_whitespace": False,
        "disable_additional_properties": False,
        "whitespace_pattern": " ",
        "structural_tag": None,
        "_backend": None,
        "_backend_was_auto": False,
    }


def test_budget_over_the_context_is_refused_under_its_own_name() -> None:
    with pytest.raises(BadRequest) as refused:
        RULES.check_budget(SamplingWishes(max_tokens=1001, limit_name="max_completion_tokens"))
    assert refused.value.message == (
        "max_completion_tokens=1001 cannot be greater than max_model_len=1000. Please request fewer output tokens. "
        "(parameter=max_completion_tokens, value=1001)"
    )
    RULES.check_budget(SamplingWishes(max_tokens=1000))


OVERRIDE = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 512}


@pytest.mark.parametrize(
    ("config", "override", "is_cap", "wished", "max_tokens"),
    [
        ({}, {}, False, None, 990),
        ({"max_new_tokens": 300}, {}, False, None, 300),
        ({"max_new_tokens": 300}, {}, False, 400, 400),  # the model's own config is a default, not a cap
        ({"max_new_tokens": 300}, {}, True, 400, 300),
        ({}, {"max_new_tokens": 300}, False, 400, 300),
        ({"max_new_tokens": 100}, {"max_new_tokens": 300}, True, None, 300),
    ],
)
def test_who_decides_max_tokens(
    config: dict[str, Any], override: dict[str, Any], is_cap: bool, wished: int | None, max_tokens: int
) -> None:
    defaults = SamplingDefaults.from_generation_config(config, override, config_is_cap=is_cap)
    assert decide(evolve(RULES, defaults=defaults), max_tokens=wished).max_tokens == max_tokens


def test_requests_come_before_defaults() -> None:
    defaults = SamplingDefaults.from_generation_config(
        {"temperature": 0.2, "do_sample": True, "eos_token_id": 3}, OVERRIDE
    )
    params = decide(evolve(RULES, defaults=defaults), top_p=0.5, temperature=None)
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.6, 20, 0.5, 512)


def test_default_stop_ids_are_added() -> None:
    rules = evolve(RULES, defaults=SamplingDefaults(stop_token_ids=(7, 8)))
    assert list(decide(rules, stop_token_ids=[9, 8]).stop_token_ids) == [9, 8, 7]
    assert list(decide(rules).stop_token_ids) == [7, 8]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(),
            "temperature": st.floats(),
            "top_p": st.floats(),
            "top_k": st.integers(),
            "min_p": st.floats(),
            "max_tokens": st.integers(),
            "min_tokens": st.integers(),
            "logprobs": st.integers(),
            "prompt_logprobs": st.integers(),
            "stop_token_ids": st.lists(st.integers()),
            "logit_bias": st.dictionaries(st.one_of(st.integers(), st.text()), st.floats()),
            "presence_penalty": st.floats(),
            "repetition_penalty": st.floats(),
            "stop": st.lists(st.text()),
            "thinking_token_budget": st.integers(),
        },
    ),
    st.integers(1, 999),
)
def test_whatever_passes_is_within_bounds(wishes: dict[str, Any], prompt_length: int) -> None:
    try:
        params = decide(prompt_length=prompt_length, **wishes)
    except BadRequest as error:
        params, refused = None, error
    if params is None:
        assert refused.param in wishes
        return
    assert 1 <= params.n <= 16384
    assert 0 <= params.temperature <= 2
    assert 0 < params.top_p <= 1
    assert params.max_tokens is not None
    assert 1 <= params.max_tokens <= 1000 - prompt_length
    assert 0 <= params.min_tokens <= params.max_tokens
    assert all(0 <= id < 500 for id in (*params.stop_token_ids, *(params.logit_bias or ())))
    assert params.logprobs is None or 0 <= params.logprobs <= 20
