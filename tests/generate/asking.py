"""One way to open an engine and ask it, for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from scaleout.core import GenerateRequest, PositionLogprobs, PromptInfo, SamplingParams, TokenDelta
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions


@frozen
class Source:
    """What an engine reads of a model's files, straight from its config."""

    name: str
    folder: Path | None
    config: Mapping[str, Any]
    max_model_len: int
    vocab_size: int
    eos_token_ids: Sequence[int]
    gguf: Path | None = None
    revision: str | None = None


def source(folder: Path, **changes: Any) -> Source:
    config = json.loads((folder / "config.json").read_text())
    eos = config.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    fields = {
        "max_model_len": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "eos_token_ids": ends,
    }
    return Source(folder.name, folder, config, **{**fields, **changes})


@define
class Answer:
    """One choice, folded."""

    token_ids: list[int] = field(factory=list)
    logprobs: list[PositionLogprobs] = field(factory=list)
    deltas: list[TokenDelta] = field(factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt: PromptInfo | None = None


async def ask(
    engine: Engine,
    token_ids: Sequence[int],
    *,
    request_id: str = "r",
    request: Mapping[str, Any] | None = None,
    **params: Any,
) -> list[Answer]:
    """All choices of one request, in order. Checks on the way what holds for every stream of deltas."""
    wanted = GenerateRequest(
        request_id, token_ids, sampling_params=SamplingParams(**params), **{"stream": True, **(request or {})}
    )
    answers = [Answer() for _ in range(params.get("n", 1))]
    async for delta in engine.generate(wanted):
        answer = answers[delta.index]
        assert answer.finish_reason is None, "a delta after the end"
        assert (delta.prompt is not None) == (not answer.deltas), "prompt information comes with the first delta alone"
        answer.deltas.append(delta)
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs or ()
        answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
        answer.prompt = answer.prompt or delta.prompt
    assert all(answer.finish_reason for answer in answers), "a choice without an end"
    return answers


async def ask_one(engine: Engine, token_ids: Sequence[int], **params: Any) -> Answer:
    return (await ask(engine, token_ids, **params))[0]


@asynccontextmanager
async def opened(files: Source, **options: Any) -> AsyncIterator[Engine]:
    engine = open_engine(files, EngineOptions(**options))
    try:
        yield engine
    finally:
        await engine.close()
