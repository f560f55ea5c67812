"""OpenAI completion requests → prompts, as CONTRACT 2.5 and 4 tell it."""

from __future__ import annotations

from typing import Any

import pytest

from scaleout.dialects import completions
from scaleout.errors import BadRequest, InvalidField

from .bodies import COMPLETION

Json = Any


def test_a_rich_request() -> None:
    request = completions.parse(COMPLETION)
    assert request.prompts == [[1, 2, 3], [4]]
    sampling, options = request.sampling, request.options
    assert (sampling.max_tokens, sampling.limit_name, sampling.logprobs, sampling.prompt_logprobs) == (
        5,
        "max_tokens",
        2,
        2,
    )
    assert (sampling.stop, sampling.allowed_token_ids, sampling.bad_words) == (["a", "b"], [1, 2], ["x"])
    assert (options.echo, options.add_special_tokens, options.truncate_prompt_tokens) == (True, True, -1)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        (["1"], ["1"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[]], [[]]),
        ([1.0, "2"], [[1, 2]]),
    ],
)
def test_prompts_have_four_forms(prompt: Json, expected: Json) -> None:
    assert completions.parse({"prompt": prompt}).prompts == expected


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 0, "echo": True}, 1),
    ],
)
def test_the_limit_is_sixteen_unless_told(given: Json, limit: int) -> None:
    assert completions.parse({"prompt": "x", **given}).sampling.max_tokens == limit


def test_an_echo_asks_for_the_prompts_logprobs_too() -> None:
    assert completions.parse({"prompt": "x", "logprobs": 2}).sampling.prompt_logprobs is None
    assert completions.parse({"prompt": "x", "logprobs": 2, "echo": True}).sampling.prompt_logprobs == 2
    assert (
        completions.parse({"prompt": "x", "echo": True, "logprobs": 2, "prompt_logprobs": 0}).sampling.prompt_logprobs
        == 0
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": 5}, "body.prompt"),
        ({"prompt": {"a": 1}}, "body.prompt"),
        ({"prompt": ["a", 1]}, "body.prompt.1"),
        ({"prompt": [1, "a"]}, "body.prompt.1"),
        ({"prompt": [1, -1]}, "body.prompt.1"),
        ({"prompt": [[1], [2, -2]]}, "body.prompt.1.1"),
        ({"prompt": [[1], "a"]}, "body.prompt.1"),
        ({"prompt": [None]}, "body.prompt.0"),
        ({"prompt": "x", "logprobs": "many"}, "body.logprobs"),
        ({"prompt": "x", "suffix": 5}, "body.suffix"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(body: Json, path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        completions.parse(body)
    assert caught.value.param == path


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({}, "Either prompt or prompt_embeds must be provided and non-empty", "prompt"),
        ({"prompt": ""}, "Either prompt or prompt_embeds must be provided and non-empty", "prompt"),
        ({"prompt": []}, "You must pass at least one prompt", "prompt"),
        ({"prompt": "x", "suffix": "y", "echo": True}, "Echo is unsupported with suffix", "suffix"),
        ({"prompt": "x", "prompt_embeds": "QUE="}, "--enable-prompt-embeds", "prompt_embeds"),
        ({"prompt": "x", "logprobs": -2}, "must be a positive value or -1", "logprobs"),
    ],
)
def test_rules_between_fields(body: Json, words: str, param: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        completions.parse(body)
    assert caught.value.param == param
