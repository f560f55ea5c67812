"""`python -m bench.engine_soak [MODEL] [--seconds 600]`: a rough crowd on one engine; what is left when it is gone.

Clients cancel, abort, disconnect, ask for several choices, send ids that do not exist and prompts that are too long. At the end every
block must be free, and the memory of the second half of the time flat.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from statistics import median

import psutil

from bench.engine_load import MODEL
from scaleout.core import GenerateRequest, SamplingParams
from scaleout.errors import BadRequest, Overloaded
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions
from scaleout.tokenizer import load_model_files

MB = 1 << 20


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine_soak", description=__doc__)
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(argv)
    return asyncio.run(soak(options))


async def soak(options: argparse.Namespace) -> int:
    files = load_model_files(options.model)
    # So little memory that preemption is common.
    engine = open_engine(
        files,
        EngineOptions(
            max_model_len=512, max_num_seqs=12, max_queued=40, kv_cache_memory=25 * MB, threads=options.threads
        ),
    )
    ends: Counter[str] = Counter()
    memory: list[float] = []
    deadline = time.monotonic() + options.seconds
    clients = [asyncio.create_task(client(engine, number, deadline, ends)) for number in range(options.clients)]
    while time.monotonic() < deadline:
        await asyncio.sleep(min(5.0, max(0.1, deadline - time.monotonic())))
        memory.append(psutil.Process().memory_info().rss / MB)
    await asyncio.gather(*clients)
    for _ in range(600):
        if not engine.stats().running + engine.stats().waiting:
            break
        await asyncio.sleep(0.1)
    stats = engine.stats()
    engine.health()
    await engine.close()
    part = max(1, len(memory) // 6)
    parts = [median(memory[start : start + part]) for start in range(0, len(memory), part)]
    print(f"{options.seconds:.0f} s, {sum(ends.values())} requests: {dict(ends)}")
    print(
        f"{stats.steps} steps, {stats.generated_tokens} tokens, {stats.preemptions} preemptions, {stats.failed_steps} failed steps"
    )
    print(f"memory, medians over time: {', '.join(f'{value:.0f}' for value in parts)} MB")
    print(f"blocks: {stats.blocks_free} of {stats.blocks_total} free; running {stats.running}, waiting {stats.waiting}")
    return (
        0 if stats.blocks_free == stats.blocks_total and not stats.running + stats.waiting + stats.failed_steps else 1
    )


async def client(engine: Engine, number: int, deadline: float, ends: Counter[str]) -> None:
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        request = any_request(f"{number}-{turn}")
        patience = random.choice([1, 2, 10, 10_000])
        task = asyncio.create_task(ask(engine, request, patience))
        if random.random() < 0.1:
            asyncio.get_running_loop().call_later(random.random(), task.cancel)
        try:
            ends[await task] += 1
        except asyncio.CancelledError:
            ends["cancelled"] += 1
        except BadRequest:
            ends["refused"] += 1
        except Overloaded:
            ends["overloaded"] += 1
            await asyncio.sleep(0.05)


async def ask(engine: Engine, request: GenerateRequest, patience: int) -> str:
    reason = "left"
    async with aclosing(engine.generate(request)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            reason = delta.finish_reason or reason
            patience -= 1
            if patience == 0:
                return "left"
            if random.random() < 0.01:
                await engine.abort([request.request_id])
    return reason


def any_request(request_id: str) -> GenerateRequest:
    length = random.choice([1, 10, 100, 300, 511, 600])
    ids = [random.randrange(100, 30000) for _ in range(length)]
    if random.random() < 0.05:
        ids[-1] = 10_000_000
    if random.random() < 0.3:
        ids[: length // 2] = [7] * (length // 2)
    params = SamplingParams(
        n=random.choice([1, 1, 1, 2, 4]),
        max_tokens=random.choice([1, 20, 100, None]),
        temperature=random.choice([0.7, 1.0]),
        top_p=random.choice([0.9, 1.0]),
        logprobs=random.choice([None, None, 3]),
        prompt_logprobs=random.choice([None, None, None, 1]),
        presence_penalty=random.choice([0.0, 0.5]),
    )
    return GenerateRequest(request_id, ids, sampling_params=params, stream=random.random() < 0.8)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
