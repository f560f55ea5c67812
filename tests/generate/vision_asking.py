"""Prompts with media, what transformers makes of them, and what an engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from asking import Answer, ask
from attrs import frozen
from vision_models import Seeing, first_item

from scaleout.core import GenerateRequest
from scaleout.generate.engine import Engine

COUNT = 8
ROOMY = {"dtype": "float32", "kv_cache_memory": 32 << 20}


@frozen
class Case:
    """A rendered prompt and what transformers makes of it."""

    request: GenerateRequest
    expected: list[int]


def case(model: Seeing, parts: Sequence[Any]) -> Case:
    request = model.render(*parts)
    images = [part for part in parts if not isinstance(part, str)]
    return Case(request, model.expected(request.token_ids, model.tensors(*images) if images else {}, COUNT))


async def answers(engine: Engine, request: GenerateRequest, **params: Any) -> list[Answer]:
    wanted = {"temperature": 0.0, "max_tokens": COUNT, "ignore_eos": True, **params}
    given = {"features": request.features, "cache_salt": request.cache_salt}
    return await ask(engine, request.token_ids, request=given, **wanted)


async def answer(engine: Engine, request: GenerateRequest, **params: Any) -> Answer:
    return (await answers(engine, request, **params))[0]


async def all_answers(engine: Engine, wanted: Sequence[Case]) -> list[list[int]]:
    found = await asyncio.gather(*(answer(engine, one.request) for one in wanted))
    return [one.token_ids for one in found]


async def answers_as_transformers(
    engine: Engine, model: Seeing, cases: Mapping[str, Case], tensors: Mapping[str, torch.Tensor]
) -> None:
    """An engine with blocks of four tokens, asked alone, beside text, and from the cache, where equal ids with another item in them
    find only what stands before it. `tensors`: what transformers is given for the prompt with two items.
    """
    one, two, other, text = (cases[key] for key in ("one", "two", "other", "text"))
    assert one.request.token_ids == other.request.token_ids
    assert one.expected != other.expected, "the item must matter"
    assert (await answer(engine, one.request)).token_ids == one.expected
    again, changed = await answer(engine, one.request), await answer(engine, other.request)
    assert again.token_ids == one.expected
    assert again.prompt is not None
    assert again.prompt.cached_tokens == (len(one.request.token_ids) - 1) // 4 * 4
    assert changed.token_ids == other.expected
    assert changed.prompt is not None
    assert changed.prompt.cached_tokens is not None
    assert changed.prompt.cached_tokens <= first_item(one.request).offset
    told = (await answer(engine, two.request, prompt_logprobs=0)).prompt
    assert told is not None
    assert told.logprobs is not None
    ids = two.request.token_ids
    found = [place[token].logprob for place, token in zip(told.logprobs[1:], ids[1:], strict=True) if place]
    assert found == pytest.approx(model.prompt_logprobs(ids, tensors), abs=1e-3)
    every = [text, two, one, text, other]
    assert await all_answers(engine, every) == [case.expected for case in every]
