"""Engines that die, hang, are drained and come back, under requests that notice as little of it as can be."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from attrs import define, field
from processes import EngineProcess, running
from serving import Server, until

from scaleout.config import EngineOptions

PAUSE = 0.02
TOKENS = 100
STREAMS = 50


@pytest.fixture
def engines(smollm2_folder: Path) -> Iterator[list[EngineProcess]]:
    with running(smollm2_folder, 3, PAUSE) as engines:
        yield engines


@pytest.fixture
def front(smollm2_folder: Path, engines: list[EngineProcess], start: Callable[..., Server]) -> Server:
    urls = tuple(engine.url for engine in engines)
    return start(smollm2_folder, EngineOptions(urls=urls, health_interval=0.1))


@define(eq=False)
class Client:
    """One streamed chat. `events` so far; `error`: what an error event, or the answer in place of a stream, said."""

    number: int
    events: list[dict[str, Any]] = field(factory=list)
    status: int | None = None
    error: dict[str, Any] | None = None
    done: bool = False

    async def run(self, session: aiohttp.ClientSession, port: int, tokens: int = TOKENS) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"Tell me {self.number} things."}],
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
        }
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
            self.status = answer.status
            if answer.status != 200:
                self.error = (await answer.json())["error"]
                return
            async for line in answer.content:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    self.done = True
                elif data:
                    event = json.loads(data)
                    self.error = event.get("error", self.error)
                    self.events.append(event)

    @property
    def finished(self) -> bool:
        ends = [c["finish_reason"] for e in self.events for c in e.get("choices", ())]
        return self.done and self.error is None and ends[-1:] == ["length"]


def states(front: Server) -> dict[str, dict[str, Any]]:
    return {engine["name"]: engine for engine in front.get("/engines").json["engines"]}


async def seen(front: Server, name: str, **wanted: Any) -> None:
    def holds() -> bool:
        engine = states(front)[name]
        return all(engine[key] == value for key, value in wanted.items())

    async with asyncio.timeout(30):
        await until(holds)


async def test_one_of_three_engines_is_killed_under_50_streams(front: Server, engines: list[EngineProcess]) -> None:
    victim = engines[0]
    clients = [Client(number) for number in range(STREAMS)]
    early, late = clients[: STREAMS // 2], clients[STREAMS // 2 :]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(60):
        tasks = [asyncio.create_task(client.run(session, front.port)) for client in early]
        await until(lambda: all(client.events for client in early))
        streaming = states(front)[victim.name]["in_flight"]
        assert 0 < streaming < len(early)
        victim.send(signal.SIGSTOP)  # what is sent to it from now on is taken by its kernel, and never answered
        tasks += [asyncio.create_task(client.run(session, front.port)) for client in late]
        await until(lambda: sum(engine["in_flight"] for engine in states(front).values()) == STREAMS)
        waiting = states(front)[victim.name]["in_flight"] - streaming
        assert waiting > 0
        began = time.monotonic()
        victim.kill()
        await asyncio.gather(*tasks)
    cut = [client for client in clients if client.error is not None]
    assert all(client.status == 200 and client.done and client.events[1:] for client in cut)
    assert all("in the middle of the answer" in client.error["message"] for client in cut if client.error)
    assert len(cut) == streaming
    assert all(client.finished for client in clients if client not in cut)
    assert {client.number for client in cut} <= {client.number for client in early}
    metrics = front.get("/metrics").body.decode()
    assert sum_of(metrics, "scaleout_remote_engine_retries_total") == waiting
    print(f"\n{streaming} were streaming, {waiting} waiting; all over {time.monotonic() - began:.1f} s after the kill")


def sum_of(metrics: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(f"{name}{{"))


async def test_an_engine_that_was_killed_returns(front: Server, engines: list[EngineProcess]) -> None:
    engine = engines[1]
    engine.kill()
    await seen(front, engine.name, state="down")
    assert front.get("/ready").status == 200
    engine.start()
    await seen(front, engine.name, state="up")
    clients = [Client(number) for number in range(6)]
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client.run(session, front.port, 5) for client in clients))
    assert all(client.finished for client in clients)
    assert f'scaleout_remote_engine_requests_total{{engine="{engine.name}",outcome="finished"}} 2.0' in str(
        front.get("/metrics").body.decode()
    )


async def test_a_rolling_restart_of_all_three_fails_no_request(front: Server, engines: list[EngineProcess]) -> None:
    """Drain, wait until nothing is in flight, restart, resume; one engine after the other, under constant load."""
    over = False
    ends: Counter[str] = Counter()

    async def keep_asking(session: aiohttp.ClientSession, number: int) -> None:
        while not over:
            client = Client(number)
            await client.run(session, front.port, 20)
            ends["finished" if client.finished else f"{client.status} {client.error}"] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(110):
        tasks = [asyncio.create_task(keep_asking(session, number)) for number in range(12)]
        for engine in engines:
            before = ends["finished"]
            drained = front.post(f"/engines/{engine.name}/drain", {}).json
            assert drained["drained"]
            await seen(front, engine.name, in_flight=0, drained=True)
            await asyncio.to_thread(engine.stop)
            await seen(front, engine.name, state="down")
            engine.start()
            await seen(front, engine.name, state="up", drained=True, in_flight=0)
            assert front.post(f"/engines/{engine.name}/resume", {}).json["drained"] is False
            await until(lambda engine=engine: states(front)[engine.name]["in_flight"] > 0)
            assert ends["finished"] > before
        over = True
        await asyncio.gather(*tasks)
    print(f"\n{ends}")
    assert list(ends) == ["finished"]


async def test_without_any_engine_the_answer_is_503_at_once(front: Server, engines: list[EngineProcess]) -> None:
    for engine in engines:
        engine.kill()
    for engine in engines:
        await seen(front, engine.name, state="down")
    for path in ("/ready", "/health"):
        assert front.get(path).status == 503
    began = time.monotonic()
    answer = front.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    assert time.monotonic() - began < 2
    assert answer.status == 503
    assert answer.error["message"] == "No engine can be reached."
    assert "Retry-After" in answer.headers
    assert (
        front.post(
            "/v1/chat/completions/render", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        ).status
        == 200
    )


async def test_an_engine_that_hangs_is_left_by_those_that_wait(front: Server, engines: list[EngineProcess]) -> None:
    """Nothing closes the connections of a process that stands still: only its silence tells."""
    hung = engines[2]
    hung.send(signal.SIGSTOP)
    clients = [Client(number) for number in range(9)]
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            await asyncio.gather(*(client.run(session, front.port, 5) for client in clients))
    finally:
        hung.send(signal.SIGCONT)
    assert all(client.finished for client in clients)
    await seen(front, hung.name, state="up")
