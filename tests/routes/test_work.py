"""Larger work on the event loop lets others in between."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from scaleout.app import make_app
from scaleout.config import Mode, ModeConfig
from scaleout.routes.work import QUICK_BODY, SMALL_BODY, Turns

RENDER = b"POST /v1/chat/completions/render HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

LIVE = b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n"


async def test_a_question_that_comes_with_two_long_prompts_is_answered_between_them(smollm2_folder: Path) -> None:
    config = ModeConfig(
        Mode.RENDER_ONLY,
        model=str(smollm2_folder),
        served_model_names=("m",),
        tokenizer_backend="fast",
        max_model_len=1 << 20,
        access_log=False,
    )
    app = make_app(config)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    body = json.dumps({"messages": [{"role": "user", "content": "What is two and two? " * 6000}]}).encode()
    assert SMALL_BODY < len(body) <= QUICK_BODY
    prompts = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    first, live = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    for _, writer in prompts:
        writer.write(RENDER % len(body) + body[:-1])
        await writer.drain()
    order: list[str] = []

    async def hear(reader: asyncio.StreamReader, name: str) -> None:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        order.append(name)

    # When this one is answered, all but the last bytes of the prompts have been read.
    first[1].write(LIVE)
    await first[0].readline()
    for _, writer in prompts:
        writer.write(body[-1:])
    live[1].write(LIVE)
    await asyncio.gather(*(hear(reader, "prompt") for reader, _ in prompts), hear(live[0], "live"))
    for _, writer in (*prompts, first, live):
        writer.close()
    await runner.cleanup()
    assert order.index("live") < 2


async def test_the_loop_goes_round_between_two_pieces() -> None:
    turns, loop = Turns(), asyncio.get_running_loop()
    rounds, worked_in = 0, []

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if len(worked_in) < 5:
            loop.call_soon(count)

    count()
    await asyncio.gather(*(turns.on_loop(lambda: worked_in.append(rounds)) for _ in range(5)))
    between = [later - sooner for sooner, later in pairwise(worked_in)]
    assert min(between) >= 2
    # Whoever comes when nothing was worked on need not wait.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(StopIteration, match="done"):
        turns.on_loop(lambda: "done").send(None)


async def test_one_body_at_a_time_in_threads() -> None:
    turns, running, most = Turns(), threading.Semaphore(1), []

    def work(number: int) -> int:
        alone = running.acquire(blocking=False)
        most.append(alone)
        threading.Event().wait(0.002)
        if alone:
            running.release()
        return number

    with ThreadPoolExecutor(4) as pool:
        done = await asyncio.gather(*(turns.in_thread(pool, lambda i=i: work(i)) for i in range(8)))  # type: ignore[misc]
    assert done == list(range(8))
    assert all(most)
