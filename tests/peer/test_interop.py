"""Every stage of ours exchanged with the peer's, in all eight combinations: the same text comes out."""

from __future__ import annotations

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
