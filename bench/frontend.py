"""One comparison: every contender serves the same model, and each load goes to them in turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from attrs import frozen

from bench.loads import LOADS, Load
from bench.models import Model, Unavailable
from bench.report import Results
from bench.servers import RENDER, SHORT, Contender, Cores, Server, running

MEMORY_REQUESTS = 100
QUICK_START = 5.0
"""Seconds. Starts that take less are repeated, as noise is a larger part of them."""
QUICK_STARTS = 3


@frozen
class Plan:
    """`seconds`: of a load that runs for a time. Rounds alternate in direction, so that a drift of the machine cancels out."""

    scenarios: Sequence[str]
    rounds: int
    seconds: float
    cores: Cores
    folder: Path


def measure(plan: Plan, model: Model, contenders: Sequence[Contender]) -> Results:
    """All of the plan on one model. What cannot be measured is a note in the results."""
    results = Results(model.name)
    with ExitStack() as stack:
        servers = []
        for contender in contenders:
            try:
                servers.append(_start(plan, model, contender, results, stack))
            except Unavailable as reason:
                results.note(f"{contender.name} did not start: {reason}")
        for scenario in plan.scenarios:
            _compare(plan, model, scenario, servers, results)
    return results


def _start(plan: Plan, model: Model, contender: Contender, results: Results, stack: ExitStack) -> Server:
    _say(f"{model.name}: starting {contender.name}")
    server = stack.enter_context(running(contender, model, plan.cores, plan.folder))
    started, spent = [server.started], [server.busy()]
    server.settle()
    while server.started < QUICK_START and len(started) < QUICK_STARTS:
        with running(contender, model, plan.cores, plan.folder) as again:
            started.append(again.started)
            spent.append(again.busy())
    for _ in range(MEMORY_REQUESTS):
        server.post(RENDER, SHORT)
    figures = {
        "start to first answer": median(started),
        "start processor time": median(spent),
        "memory after 100 requests": server.resident(),
    }
    results.add(contender.name, figures)
    return server


def _compare(plan: Plan, model: Model, scenario: str, servers: Sequence[Server], results: Results) -> None:
    load = LOADS[scenario]
    if 0 < model.context < load.context:
        results.note(f"{scenario}: needs a context of {load.context} tokens, the model has {model.context}")
        return
    able = [server for server in servers if _can(server.contender, load)]
    for round_ in range(plan.rounds):
        for server in able if round_ % 2 == 0 else able[::-1]:
            _say(f"{model.name}: {scenario}, round {round_ + 1} of {plan.rounds}, {server.contender.name}")
            before = server.busy()
            try:
                outcome = load.run(server, plan.seconds, round_)
            except Unavailable as reason:
                results.note(f"{scenario}, {server.contender.name}: {reason}")
                continue
            spent = (server.busy() - before) * 1e3 / max(outcome.work, 1)
            results.add(server.contender.name, {**outcome.figures, f"{scenario} processor time": spent})


def _can(contender: Contender, load: Load) -> bool:
    return (contender.derenders or not load.derenders) and (contender.name == "ours" or not load.streams)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
