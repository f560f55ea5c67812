"""A choice that its reader wants no more of: where each choice has a connection of its own, that one is closed."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
from driving import run_wire
from steady_engine import Steady

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.generate.backends.remote import RemoteEngine
from scaleout.generate.engine import open_engine
from scaleout.generate.options import EngineOptions, RemoteOptions
from scaleout.tokenizer import load_model_files

MOST = 500


@pytest.mark.parametrize("kind", ["sglang", "sglang incremental"])
async def test_its_connection_is_closed_and_its_siblings_go_on(smollm2_folder: Path, kind: str) -> None:
    files = load_model_files(str(smollm2_folder))
    inner = open_engine(files, EngineOptions(backend="echo"))
    params = SamplingParams(n=3, max_tokens=MOST, ignore_eos=True)
    request = GenerateRequest("r", [50, 60, 70], stream=True, sampling_params=params)
    over: set[int] = set()
    said, reasons = [0, 0, 0], {}
    with run_wire(kind, smollm2_folder, Steady(inner, pause=0.001)) as server:
        remote = RemoteOptions((f"http://127.0.0.1:{server.port}",), dialect="sglang", models=("m",))
        engine = open_engine(files, EngineOptions(backend="remote", remote=remote))
        assert isinstance(engine, RemoteEngine)
        await engine.connect()
        async with aclosing(engine.generate(request, over.__contains__)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                assert delta.index not in reasons, "a delta after the end"
                said[delta.index] += len(delta.token_ids)
                if delta.finish_reason is not None:
                    reasons[delta.index] = delta.finish_reason
                over.add(1)
        await engine.close()
    assert reasons == {0: "length", 1: "abort", 2: "length"}
    assert (said[0], said[2]) == (MOST, MOST)
    assert said[1] < MOST / 2
    assert inner.stats().generated_tokens < 2.5 * MOST, "the engine behind the wire made on"
    await inner.close()
