"""`python -m bench.engine_load [MODEL]`: our engine beside the peer's on this machine's processor, with equal threads.

Both run as servers that take and give token ids. Rounds alternate, every prompt is new to both, and a ratio is the median over pairs of
neighbouring rounds. The peer's command is `SCALEOUT_PEER`, or `.cache/peer/venv/bin/vllm`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from attrs import define, frozen

from bench.models import REPOSITORY

MODEL = REPOSITORY / ".cache" / "models" / "SmolLM2-135M-Instruct"
START_SECONDS = 600.0


@frozen
class Load:
    """`requests` of `prompt` tokens in and `answer` tokens out, `clients` at a time. `target`: times the peer's output rate."""

    name: str
    clients: int
    requests: int
    prompt: int
    answer: int
    target: float


LOADS = (
    Load("1 client", 1, 4, 128, 64, 1.0),
    Load("8 clients", 8, 16, 128, 64, 1.3),
    Load("32 clients", 32, 64, 128, 64, 1.5),
    Load("prompts of 1024", 4, 8, 1024, 8, 1.2),
)


@define
class Server:
    name: str
    url: str
    process: subprocess.Popen[bytes]
    started_in: float = 0.0

    def processor_seconds(self) -> float:
        """Of all its processes, so far."""
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        return sum(sum(one.cpu_times()[:2]) for one in tree)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine_load", description=__doc__)
    parser.add_argument("model", nargs="?", default=str(MODEL), help="a folder with weights. Default: the demo's model")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine. Default: all cores"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    options = parser.parse_args(argv)
    peer = Path(os.environ.get("SCALEOUT_PEER") or REPOSITORY / ".cache" / "peer" / "venv" / "bin" / "vllm")
    if not options.alone and not peer.exists():
        print(f"bench: the peer is missing at {peer}; set SCALEOUT_PEER or say --alone", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaleout-bench-")))
        flags = ["--served-model-name", "m", "--tokens-only", "--dtype", options.dtype, "--max-model-len", "4096"]
        ours = Path(sys.executable).with_name("scaleout")
        command = [str(ours), "serve", options.model, *flags, "--engine-threads", str(options.threads)]
        servers = [stack.enter_context(running("ours", command, options.threads, logs))]
        if not options.alone:
            servers.append(
                stack.enter_context(running("peer", [str(peer), "serve", options.model, *flags], options.threads, logs))
            )
        print(
            f"{options.threads} threads, {options.dtype}; start: "
            + ", ".join(f"{s.name} {s.started_in:.1f} s" for s in servers)
        )
        columns = "".join(f"{server.name + ' tok/s':>14}{'tok/cpu s':>12}" for server in servers)
        print(f"{'':30}{columns}{'ratio':>10}{'target':>8}")
        for load in LOADS:
            report(load, [[measure(server, load) for server in servers] for _ in range(options.rounds)])
        for server in servers:
            first, second = asyncio.run(time_to_first_token(server.url))
            print(
                f"{server.name}: first token of a 2000-token prompt {first:.2f} s, again {second:.3f} s, {second / first:.2f}×"
            )
    return 0


@contextmanager
def running(name: str, command: Sequence[str], threads: int, logs: Path) -> Iterator[Server]:
    """A server from its start until it answers, ended by its own id."""
    port = 18000 + os.getpid() % 1000 * 2 + (name == "peer")
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    quiet |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    begun = time.perf_counter()
    with (logs / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], env={**os.environ, **quiet}, stdout=log, stderr=log)
    try:
        server = Server(name, f"http://127.0.0.1:{port}", process)
        asyncio.run(until_healthy(server, begun))
        server.started_in = time.perf_counter() - begun
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


async def until_healthy(server: Server, begun: float) -> None:
    async with aiohttp.ClientSession() as session:
        while time.perf_counter() - begun < START_SECONDS:
            if server.process.poll() is not None:
                raise SystemExit(f"bench: {server.name} ended with code {server.process.returncode} while it started")
            try:
                async with session.get(f"{server.url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit(f"bench: {server.name} did not start within {START_SECONDS:.0f} s")


def measure(server: Server, load: Load) -> tuple[float, float]:
    """Output tokens per second, and per processor second."""
    used = server.processor_seconds()
    begun = time.perf_counter()
    made = asyncio.run(run(server.url, load))
    took = time.perf_counter() - begun
    return made / took, made / (server.processor_seconds() - used)


async def run(url: str, load: Load) -> int:
    waiting = [body(load.prompt, load.answer) for _ in range(load.requests)]
    made = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1200)) as session:

        async def client() -> None:
            nonlocal made
            while waiting:
                async with session.post(f"{url}/inference/v1/generate", json=waiting.pop()) as answer:
                    answer.raise_for_status()
                    made += sum(len(choice["token_ids"]) for choice in (await answer.json())["choices"])

        await asyncio.gather(*[client() for _ in range(load.clients)])
    return made


async def time_to_first_token(url: str) -> tuple[float, float]:
    """Seconds until the first token of a long prompt, new and then known."""
    request = {**body(2000, 2), "stream": True}
    times = []
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            begun = time.perf_counter()
            async with session.post(f"{url}/inference/v1/generate", json=request) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {") and any(c["token_ids"] for c in json.loads(line[6:])["choices"]):
                        times.append(time.perf_counter() - begun)
                        break
    return times[0], times[1]


def body(prompt: int, answer: int) -> dict[str, Any]:
    """A request that no server has seen."""
    ids = [random.randrange(100, 30000) for _ in range(prompt)]
    return {
        "model": "m",
        "token_ids": ids,
        "sampling_params": {"max_tokens": answer, "temperature": 0.0, "ignore_eos": True},
    }


def report(load: Load, rounds: Sequence[Sequence[tuple[float, float]]]) -> None:
    figures = "".join(
        f"{median(one[place][0] for one in rounds):>14.1f}{median(one[place][1] for one in rounds):>12.1f}"
        for place in range(len(rounds[0]))
    )
    ratio = ""
    if len(rounds[0]) == 2:
        ratio = f"{median(ours[0] / peer[0] for ours, peer in rounds):>9.2f}×{load.target:>7.1f}×"
    print(f"{load.name:18}{load.prompt:>6}+{load.answer:<5}{figures}{ratio}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
