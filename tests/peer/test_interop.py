"""Every stage of ours exchanged with the peer's, in all eight combinations: the same text comes out."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from serving import Server
from split import ok

pytestmark = [pytest.mark.peer, pytest.mark.engine, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"
PROMPTS = (
    "What is 2+2?",
    "Name three colours.",
    "Write a haiku about rain.",
    "Translate 'good morning' into French.",
    "List the planets.",
    "Why is the sky blue?",
    "Say something with an emoji 🙂.",
    "Count from one to ten.",
    "Define entropy in one sentence.",
    "Was ist naïve Kunst?",
)
COMBINATIONS = list(product(("our", "peer"), repeat=3))


@pytest.fixture(scope="module")
def stages(our_front: Server, our_engine: Server, peer_front: Server, peer_engine: Server) -> dict[str, Server]:
    return {
        "our front": our_front,
        "our engine": our_engine,
        "peer front": peer_front,
        "peer engine": peer_engine,
    }


def ask(stages: dict[str, Server], combination: tuple[str, str, str], body: dict[str, Any]) -> dict[str, Any]:
    render, generate, derender = combination
    rendered = ok(stages[f"{render} front"].post(f"{CHAT}/render", body))
    generated = ok(stages[f"{generate} engine"].post("/inference/v1/generate", rendered))
    call = {
        "model": "m",
        "generate_response": generated,
        "prompt_tokens": len(rendered["token_ids"]),
        "chat_request": body,
    }
    answer: dict[str, Any] = ok(stages[f"{derender} front"].post(f"{CHAT}/derender", call))
    return answer


@pytest.mark.parametrize("prompt", PROMPTS)
def test_eight_combinations_give_one_text(stages: dict[str, Server], prompt: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 0}
    answers = {"/".join(which): ask(stages, which, body) for which in COMBINATIONS}
    texts = {which: answer["choices"][0]["message"]["content"] for which, answer in answers.items()}
    assert len(set(texts.values())) == 1, texts
    reasons = {answer["choices"][0]["finish_reason"] for answer in answers.values()}
    assert len(reasons) == 1
    usages = {(answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) for answer in answers.values()}
    assert len(usages) == 1


def test_eight_combinations_give_the_same_logprobs(stages: dict[str, Server]) -> None:
    """Tokens, their neighbours in order, and the numbers up to the order of sums in float32."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    answers = {"/".join(which): ask(stages, which, body) for which in COMBINATIONS}
    said = {which: answer["choices"][0]["logprobs"]["content"] for which, answer in answers.items()}
    first = said["our/our/our"]
    assert len(first) == 12
    for which, positions in said.items():
        assert len(positions) == len(first), which
        for position, expected in zip(positions, first, strict=True):
            assert (position["token"], position["bytes"]) == (expected["token"], expected["bytes"]), which
            assert position["logprob"] == pytest.approx(expected["logprob"], abs=0.002), which
            shown = [(top["token"], top["bytes"]) for top in position["top_logprobs"]]
            assert shown == [(top["token"], top["bytes"]) for top in expected["top_logprobs"]], which
            numbers = [top["logprob"] for top in position["top_logprobs"]]
            assert numbers == pytest.approx([top["logprob"] for top in expected["top_logprobs"]], abs=0.002), which


@pytest.mark.parametrize("engine", ["our", "peer"])
def test_a_seed_gives_the_same_three_choices_through_any_front(stages: dict[str, Server], engine: str) -> None:
    """Each engine draws in its own way, so only its own answers can be equal.

    Not 16 tokens: the peer's render leaves that number out, and its engine then goes on to the end of the context.
    """
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Invent a name for a boat."}],
        "max_tokens": 15,
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 7,
        "n": 3,
    }
    through = [which for which in COMBINATIONS if which[1] == engine]
    texts = []
    for which in [*through, through[0]]:
        choices = ask(stages, which, body)["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        texts.append([choice["message"]["content"] for choice in choices])
    assert all(one == texts[0] for one in texts)
    assert len(set(texts[0])) == 3


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


def test_a_schema_is_kept_through_any_front(stages: dict[str, Server]) -> None:
    """Either render asks for it, our engine keeps it without a tokenizer of its own on the way, and the peer's engine cannot."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Describe Paris as JSON."}],
        "max_tokens": 60,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
    }
    texts = {
        ask(stages, which, body)["choices"][0]["message"]["content"] for which in COMBINATIONS if which[1] == "our"
    }
    assert len(texts) == 1
    found = json.loads(texts.pop())
    assert found.keys() == {"city", "size"}
    assert len(found["city"]) <= 12
    assert found["size"] in ("small", "large")
    for front in ("our", "peer"):
        rendered = ok(stages[f"{front} front"].post(f"{CHAT}/render", body))
        answer = stages["peer engine"].post("/inference/v1/generate", rendered)
        assert answer.status == 400
        assert "tokenizer" in answer.json["error"]["message"]
