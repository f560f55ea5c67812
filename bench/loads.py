"""Loads: what is sent to a server, and the figures that come of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

from bench.models import REPOSITORY, SHARED, Unavailable
from bench.servers import NAME, RENDER, Server

LOAD_SECONDS = 600.0
"""No load may take longer, whoever answers it."""
SHORT_SCRIPT = Path(__file__).with_name("short.lua")
CLIENT = SHARED / "bench" / "frontend_load.py"


@frozen
class Outcome:
    """What a load showed. `work`: requests or chunks that the server answered in all."""

    figures: Mapping[str, float]
    work: int


@frozen
class Load:
    """`run` takes a server, the seconds to spend (where the load is not a fixed amount of work) and the number of the round.

    `context`: tokens that a model must be able to take. `derenders`: also needs the derender routes. `streams`: also needs
    the route that takes an event stream, which no peer has.
    """

    run: Callable[[Server, float, int], Outcome]
    context: int = 0
    derenders: bool = False
    streams: bool = False


def run_wrk(server: Server, seconds: float, round_: int) -> Outcome:
    """Short chats over eight connections: answers per second."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise Unavailable("wrk is not installed (Debian, Ubuntu: apt-get install wrk)")
    duration = max(1, round(seconds))
    command = [wrk, "-t1", "-c8", f"-d{duration}", "-s", str(SHORT_SCRIPT), "--latency", server.url + RENDER]
    return read_wrk(_run(command))


def read_wrk(text: str) -> Outcome:
    """wrk's report → outcome. Raises `Unavailable` when not all answers were good."""
    for fault in ("Non-2xx", "Socket errors"):
        if found := re.search(rf"{fault}.*", text):
            raise Unavailable(f"wrk: {found[0].strip()}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    answered = re.search(r"(\d+) requests in", text)
    if rate is None or answered is None:
        raise Unavailable(f"wrk said nothing of its rate: {text.strip()[-200:]}")
    return Outcome({"short": float(rate[1])}, int(answered[1]))


def run_client(scenario: str) -> Callable[[Server, float, int], Outcome]:
    """A scenario of `frontend_load.py`: a fixed amount of work, in each round the same bytes for every server."""

    def run(server: Server, seconds: float, round_: int) -> Outcome:
        if not CLIENT.exists():
            raise Unavailable("../shared/bench/frontend_load.py is absent here")
        command = [sys.executable, "-m", "bench.reseed", str(round_), str(CLIENT), server.url, NAME, scenario]
        return read_client(scenario, _run(command))

    return run


def read_client(scenario: str, text: str) -> Outcome:
    """The client's JSON line → outcome. Raises `Unavailable` when it has none, or counted errors."""
    try:
        told = json.loads(text.strip().splitlines()[-1])
        if told["scenario"] != scenario:
            raise KeyError(scenario)
    except (ValueError, KeyError, IndexError, TypeError):
        raise Unavailable(f"the load ended early: {text.strip()[-200:]}") from None
    if told.get("errors"):
        raise Unavailable(f"{told['errors']} of {told['requests']} were refused: {told.get('error', '')}")
    if scenario != "stream":
        return Outcome({scenario: told["rps"], f"{scenario} p99": told["p99_ms"]}, told["requests"])
    figures = {
        "stream": told["chunks"] / max(told["total_s"], 0.01),
        "stream last 50 / first 50": told["last50_ms"] / max(told["first50_ms"], 0.01),
        "stream state": told["state_bytes"],
    }
    return Outcome(figures, told["chunks"])


def run_sse(server: Server, seconds: float, round_: int) -> Outcome:
    """Answers derendered over one connection each, many at a time: chunks per second."""
    command = [sys.executable, "-m", "bench.sse_load", server.url, NAME, "100", str(seconds)]
    try:
        told = json.loads(_run(command).strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Unavailable("the load ended early") from None
    if told["error"]:
        raise Unavailable(told["error"])
    return Outcome({"sse": told["chunks_per_s"], "sse p99": told["p99_ms"]}, told["chunks"])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_SECONDS, cwd=REPOSITORY, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"took over {LOAD_SECONDS:g} s") from None
    if done.returncode:
        raise Unavailable(f"the load failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


LOADS: Mapping[str, Load] = {
    "short": Load(run_wrk),
    "long": Load(run_client("long"), context=65_536),
    "agent": Load(run_client("agent"), context=32_768),
    "derender": Load(run_client("derender"), derenders=True),
    "stream": Load(run_client("stream"), derenders=True),
    "sse": Load(run_sse, derenders=True, streams=True),
}
