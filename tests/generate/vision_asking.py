"""Prompts with media, what transformers makes of them, and what an engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asking import Answer, ask
from attrs import frozen
from vision_models import Seeing

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
