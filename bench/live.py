"""`python -m bench.live [MODEL] [--seconds 30] [--requests 1000]`: does a render server stay alive, and small, under long prompts?

One render process on one core. Clients on another send prompts of text that was never seen; beside them somebody asks for `/live` every
few milliseconds, as an orchestrator would. Then many long prompts, and what is left of them in memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from bench.models import Model, Unavailable, find_model
from bench.servers import NAME, RENDER, Contender, Cores, Server, choose_cores, running

LONG, LONGEST = 60_000, 200_000
"""Tokens of a prompt."""
CONTEXT = 262_144
EVERY = 0.005
"""Seconds between two questions for `/live`."""
WANTED_P99 = 0.020
WANTED_GROWTH = 20.0
"""MB from the first tenth of the requests to the last."""
SIZES = (2_000, 5_000, 20_000, LONG)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when both targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    parser.add_argument("model", nargs="?", default="qwen3")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args(argv)
    scaleout = Path(sys.executable).with_name("scaleout")
    flags = ["--workers", "1", "--no-access-log", "--max-model-len", str(CONTEXT)]
    ours = Contender("ours", [str(scaleout), "launch", "render"], flags)
    cores = choose_cores()
    cores.pin(cores.load)
    try:
        model = find_model(options.model)
        with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as folder:
            return measure(ours, model, cores, Path(folder), options)
    except Unavailable as reason:
        print(f"bench: {reason}", file=sys.stderr)
        return 1


def measure(ours: Contender, model: Model, cores: Cores, folder: Path, options: argparse.Namespace) -> int:
    with running(ours, model, cores, folder) as server:
        server.settle()
        per_token = characters_per_token(server)
        started = server.resident()
        print(f"{model.name}: {started:.0f} MB after the start, {per_token:.1f} characters a token", flush=True)
        good = True
        for tokens, clients in ((0, 0), (LONG, 1), (LONG, options.clients), (LONGEST, options.clients)):
            with pressing(server.url, [int(tokens * per_token)], clients, None) as load:
                waits = probe(server.url, options.seconds if tokens else options.seconds / 5)
            good &= report(f"{clients} clients, prompts of {tokens:,} tokens", waits, load.done)
        return 0 if good & remember(server, per_token, options.requests, options.clients) else 1


def characters_per_token(server: Server) -> float:
    text = unseen(40_000, random.Random(0))
    answer = server.post(RENDER, body_of(text))
    assert isinstance(answer, dict)
    return len(text) / len(answer["token_ids"])


def remember(server: Server, per_token: float, requests: int, clients: int) -> bool:
    """Memory over many long prompts of all sizes, every hundredth of them the longest."""
    sizes = [SIZES[n % len(SIZES)] if n % 100 else LONGEST for n in range(requests)]
    points = [server.resident()]
    for tenth in range(10):
        part = [int(size * per_token) for size in sizes[tenth::10]]
        with pressing(server.url, part, clients, len(part)) as load:
            load.wait()
        points.append(server.resident())
    growth = points[-1] - points[1]
    print(f"memory over {requests} requests, up to {LONGEST:,} tokens, MB: {' '.join(f'{one:.0f}' for one in points)}")
    print(f"growth from the first tenth to the last: {growth:.0f} MB (wanted: under {WANTED_GROWTH:.0f})")
    return growth < WANTED_GROWTH


def report(what: str, waits: list[float], done: int) -> bool:
    waits = sorted(waits)
    at = [waits[min(len(waits) - 1, int(len(waits) * share))] * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
    p50, p90, p99, most = at
    print(
        f"{what:42} /live p50 {p50:6.2f}  p90 {p90:6.2f}  p99 {p99:6.2f}  max {most:6.2f} ms   "
        f"({len(waits)} asked, {done} prompts rendered)",
        flush=True,
    )
    return p99 < WANTED_P99 * 1000


def probe(url: str, seconds: float) -> list[float]:
    """Seconds that each `/live` took, on a connection that stays."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    waits = []
    deadline = time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        connection.request("GET", "/live")
        answer = connection.getresponse()
        answer.read()
        waits.append(time.perf_counter() - began)
        if answer.status != 200:
            raise Unavailable(f"/live answered {answer.status}")
        time.sleep(EVERY)
    connection.close()
    return waits


class Load:
    """Clients in a process of their own, so that what they do takes no time from whoever asks for `/live`."""

    def __init__(self, url: str, sizes: Sequence[int], clients: int, requests: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._count = context.Value("i", 0)
        self._process = context.Process(
            target=press, args=(url, list(sizes), clients, requests, self._stop, self._count)
        )
        self._process.start()

    @property
    def done(self) -> int:
        return int(self._count.value)

    def wait(self) -> None:
        self._process.join()
        if self._process.exitcode:
            raise Unavailable("a client failed")

    def stop(self) -> None:
        self._stop.set()
        self.wait()


@contextmanager
def pressing(url: str, sizes: Sequence[int], clients: int, requests: int | None) -> Iterator[Load]:
    """Clients that render prompts of these sizes in turn, until all are done or the block ends."""
    load = Load(url, sizes, clients, requests)
    while clients and requests is None and not load.done:
        time.sleep(0.05)
    try:
        yield load
    finally:
        load.stop()


def press(url: str, sizes: list[int], clients: int, requests: int | None, stop: Event, count: object) -> None:
    os.nice(10)
    left = iter(range(requests)) if requests is not None else None
    failed = []

    def client(number: int) -> None:
        place, source = urlsplit(url), random.Random(f"{time.time_ns()} {number}")
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
        turn = number
        while not stop.is_set():
            if left is not None and (turn := next(left, -1)) < 0:
                break
            body = json.dumps(body_of(unseen(sizes[turn % len(sizes)], source)))
            connection.request("POST", RENDER, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                failed.append(answer.status)
                break
            with count.get_lock():  # type: ignore[attr-defined]
                count.value += 1  # type: ignore[attr-defined]
            turn += 1
        connection.close()

    threads = [Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed else 0)


def unseen(characters: int, source: random.Random) -> str:
    """Words that no cache has met."""
    words = ["".join(source.choices(LETTERS, k=source.randint(2, 9))) for _ in range(2000)]
    return " ".join(source.choices(words, k=max(1, characters * 2 // 13)))[:characters]


def body_of(text: str) -> dict[str, object]:
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 16}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
