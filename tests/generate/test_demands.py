"""Demands on the text of an answer, kept by the whole engine: structure, bad words, thinking budgets, repetition."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from asking import Source, ask, ask_one, opened

from scaleout.errors import BadRequest, NotSupported
from scaleout.generate.engine import Engine
from scaleout.generate.options import ThinkingMarkers
from scaleout.tokenizer import Tokenizer

pytest.importorskip("llguidance")
pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "maximum": 99, "minimum": 0}, "unit": {"enum": ["m", "km"]}},
    "required": ["answer", "unit"],
    "additionalProperties": False,
}
CALL = {
    "type": "tags_with_separator",
    "separator": "\n",
    "at_least_one": True,
    "stop_after_first": True,
    "tags": [
        {
            "type": "tag",
            "begin": '<tool_call>\n{"name": "go", "arguments": ',
            "content": {"type": "json_schema", "json_schema": SCHEMA},
            "end": "}\n</tool_call>",
        }
    ],
}


@pytest.fixture
def prompt(smollm2_tokenizer: Tokenizer) -> list[int]:
    text = "<|im_start|>user\nHow far is it?<|im_end|>\n<|im_start|>assistant\n"
    return smollm2_tokenizer.encode(text, False)


async def test_structures_are_kept_side_by_side(
    smollm2_engine: Engine, smollm2_tokenizer: Tokenizer, prompt: list[int]
) -> None:
    demands: dict[str, dict[str, Any]] = {
        r"\{.*\}": {"json": SCHEMA, "disable_any_whitespace": True},
        r"\d{3}-\d{2}": {"regex": r"\d{3}-\d{2}"},
        "near|far": {"choice": ["near", "far"]},
        "ab+": {"grammar": 'start: "a" "b"+'},
        r"<tool_call>\n\{.*\}\n</tool_call>": {"structural_tag": json.dumps({"format": CALL})},
    }
    params: dict[str, Any] = {"max_tokens": 60, "seed": 2, "top_p": 0.9}
    free = asyncio.create_task(ask_one(smollm2_engine, prompt, temperature=0.0, max_tokens=8))
    constrained = [ask(smollm2_engine, prompt, n=2, structured_outputs=demand, **params) for demand in demands.values()]
    for pattern, answers in zip(demands, await asyncio.gather(*constrained), strict=True):
        for answer in answers:
            text = smollm2_tokenizer.decode(answer.token_ids, True)
            assert re.fullmatch(pattern, text, re.DOTALL) or (answer.finish_reason == "length" and pattern == "ab+"), (
                text
            )
            if pattern.startswith(r"\{"):
                assert 0 <= json.loads(text)["answer"] <= 99
    assert (await free).token_ids == (await ask_one(smollm2_engine, prompt, temperature=0.0, max_tokens=8)).token_ids


async def test_a_finished_structure_ends_the_answer(smollm2_engine: Engine, prompt: list[int]) -> None:
    demand = {"choice": ["yes"]}
    for extra in ({}, {"ignore_eos": True}, {"min_tokens": 20}):
        answer = await ask_one(smollm2_engine, prompt, structured_outputs=demand, max_tokens=50, **extra)
        assert (answer.token_ids[-1], answer.finish_reason, answer.stop_reason) == (2, "stop", None)
        assert len(answer.token_ids) < 6


async def test_thinking_is_free_and_what_follows_is_not(
    smollm2_engine: Engine, smollm2_tokenizer: Tokenizer, prompt: list[int]
) -> None:
    opened_prompt = prompt + smollm2_tokenizer.encode("<think>", False)
    wanted: dict[str, Any] = {"structured_outputs": {"choice": ["near", "far"]}, "max_tokens": 60, "seed": 4}
    answer = await ask_one(smollm2_engine, opened_prompt, **wanted, thinking_token_budget=10)
    thought, _, text = smollm2_tokenizer.decode(answer.token_ids, True).partition("</think>")
    assert len(smollm2_tokenizer.encode(thought, False)) >= 8
    assert text in ("near", "far")
    for ended in (True, None):
        at_once = await ask_one(
            smollm2_engine, opened_prompt if ended else prompt, **wanted, request={"reasoning_ended": ended}
        )
        assert smollm2_tokenizer.decode(at_once.token_ids, True) in ("near", "far")


async def test_a_thinking_budget_ends_thinking_once(
    smollm2_engine: Engine, smollm2_tokenizer: Tokenizer, prompt: list[int]
) -> None:
    end = smollm2_tokenizer.encode("</think>", False)
    start = smollm2_tokenizer.encode("<think>", False)
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    for budget in (0, 5):
        answer = await ask_one(smollm2_engine, [*prompt, *start], **params, thinking_token_budget=budget)
        assert answer.token_ids[budget : budget + len(end)] == end
    unbound = await ask_one(smollm2_engine, [*prompt, *start], **params, thinking_token_budget=-1)
    assert unbound.token_ids[: len(end)] != end
    outside = await ask_one(smollm2_engine, prompt, **params, thinking_token_budget=5)
    assert outside.token_ids == (await ask_one(smollm2_engine, prompt, **params)).token_ids


async def test_bad_words_are_never_said(
    smollm2_engine: Engine, smollm2_tokenizer: Tokenizer, prompt: list[int]
) -> None:
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}
    plain = smollm2_tokenizer.decode((await ask_one(smollm2_engine, prompt, **params)).token_ids, True)
    words = [word for word in re.findall(r"\w+", plain)[:4] if len(word) > 2]
    assert words
    clean = smollm2_tokenizer.decode((await ask_one(smollm2_engine, prompt, bad_words=words, **params)).token_ids, True)
    assert not set(words) & set(re.findall(r"\w+", clean))


async def test_going_round_in_circles_ends_the_answer(smollm2_engine: Engine, prompt: list[int]) -> None:
    circle: dict[str, Any] = {"temperature": 0.0, "allowed_token_ids": [77], "max_tokens": 50}
    spec = {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}
    answer = await ask_one(smollm2_engine, prompt, repetition_detection=spec, **circle)
    assert (len(answer.token_ids), answer.finish_reason, answer.stop_reason) == (6, "repetition", None)
    off = await ask_one(smollm2_engine, prompt, repetition_detection={"max_pattern_size": 0}, **circle)
    assert (len(off.token_ids), off.finish_reason) == (50, "length")
    for wrong in (
        {"max_pattern_size": 5000},
        {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2},
        {"max_pattern_size": 2},
    ):
        with pytest.raises(BadRequest, match="repetition_detection"):
            await ask(smollm2_engine, prompt, repetition_detection=wrong)


async def test_demands_that_contradict_each_other_fail_alone(smollm2_engine: Engine, prompt: list[int]) -> None:
    other = asyncio.create_task(ask_one(smollm2_engine, prompt, max_tokens=20, ignore_eos=True))
    with pytest.raises(BadRequest, match="leave no token"):
        await ask(smollm2_engine, prompt, structured_outputs={"choice": ["yes"]}, allowed_token_ids=[77])
    with pytest.raises(BadRequest, match=r"structured_outputs\.regex cannot be used"):
        await ask(smollm2_engine, prompt, structured_outputs={"regex": "("})
    assert (await other).finish_reason == "length"
    assert smollm2_engine.stats().failed_steps == 0


async def test_text_needs_a_tokenizer(smollm2: Source, prompt: list[int]) -> None:
    async with opened(smollm2, max_model_len=256) as engine:
        for params in ({"bad_words": ["x"]}, {"structured_outputs": {"regex": "a"}}, {"thinking_token_budget": 5}):
            with pytest.raises(NotSupported):
                await ask(engine, prompt, **params)
        assert (await ask_one(engine, prompt, max_tokens=2, ignore_eos=True)).finish_reason == "length"


def test_markers_of_several_ids_are_found(smollm2_folder: Path) -> None:
    from scaleout.generate.thinking import ThinkingTrace

    trace = ThinkingTrace(ThinkingMarkers([1, 2], [1, 3]))
    states = []
    for id in (1, 1, 2, 5, 1, 3, 1, 2):
        trace.read([id])
        states.append((trace.inside, trace.count, trace.ended))
    assert states[2:] == [
        (True, 0, False),
        (True, 1, False),
        (True, 2, False),
        (False, 3, True),
        (False, 3, True),
        (True, 0, False),
    ]
