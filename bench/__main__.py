"""`python -m bench [scenario ...]`: our render-only server beside the peers, in one run, on one core or on all of them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.frontend import Plan, measure
from bench.loads import LOADS
from bench.models import DEMO, RECIPES, Model, Unavailable, find_model
from bench.report import OURS, PEER, RUST, Results, to_json, write_table
from bench.servers import Cores, choose_cores, find_contenders

DEFAULT = ("short", "derender")
PINNED = "Each server is one process on one core, the load runs on another."
SHARED = (
    "Servers and load share all cores; each server has as many processes as there are cores, where it has processes."
)
NOTES = """\
{how} Rounds alternate. A ratio says how many times better ours is
(median over pairs of neighbouring rounds), a figure is the median of its rounds. Starts under 5 s are medians of three.
Processor time is the server's own: what else runs on the machine hardly changes it.
peer: vLLM's own server; rust: its Rust one."""


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when ours was measured, whatever the figures say; 1 when nothing was, 2 for a wrong command line."""
    options = _read(argv)
    scaleout = Path(sys.executable).with_name("scaleout")
    if not scaleout.exists():
        print(f"bench: {scaleout} is missing; run `make bench`, or pip install -e . here", file=sys.stderr)
        return 1
    processes = len(os.sched_getaffinity(0)) if options.all_cores and hasattr(os, "sched_getaffinity") else 1
    contenders, notes = find_contenders(scaleout, processes)
    contenders = [who for who in contenders if who.name not in options.without]
    cores = choose_cores(pinned=not options.all_cores)
    cores.pin(cores.load)
    notes += _describe(cores, options.all_cores)
    scenarios = list(LOADS) if "all" in options.scenarios else list(dict.fromkeys(options.scenarios)) or list(DEFAULT)
    all_results: list[Results] = []
    with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as folder:
        plan = Plan(scenarios, options.rounds, options.seconds, cores, Path(folder))
        for model in _find_models(options.model, notes):
            all_results.append(measure(plan, model, contenders))
    how = NOTES.format(how=SHARED if options.all_cores else PINNED)
    out = sys.stderr if options.json else sys.stdout
    names = [who.name for who in contenders]
    print("\n\n".join(["", *(write_table(results, names) for results in all_results), how, *notes]), file=out)
    if options.json:
        told = {"notes": notes, "cores": [cores.server, cores.load], "models": [to_json(r) for r in all_results]}
        print(json.dumps(told, indent=1))
    return 0 if any(OURS in values for results in all_results for values in results.rounds.values()) else 1


def _find_models(names: Sequence[str] | None, notes: list[str]) -> list[Model]:
    """The models that were asked for, as far as they are there. The demo's stands in where those of the comparison cannot be had."""
    found = []
    for name in names or RECIPES:
        try:
            found.append(find_model(name))
        except Unavailable as reason:
            notes.append(f"{name}: {reason}")
    return found if found or names else _find_models([DEMO], notes)


def _read(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(LOADS)} or all. Default: {' '.join(DEFAULT)}"
    )
    models = ", ".join(RECIPES)
    parser.add_argument(
        "--model", action="append", help=f"{models}, {DEMO}, a folder or a GGUF file; repeatable. Default: {models}"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each scenario. Default: 3")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a load that runs for a time. Default: 5")
    parser.add_argument("--all-cores", action="store_true", help="as many processes as cores, and nothing pinned")
    parser.add_argument("--without", action="append", default=[], choices=[OURS, PEER, RUST], help="leave one out")
    parser.add_argument(
        "--json", action="store_true", help="JSON on the standard output, the table on the error output"
    )
    options = parser.parse_args(argv)
    if unknown := [name for name in options.scenarios if name not in LOADS and name != "all"]:
        parser.error(f"unknown scenario {', '.join(unknown)}")
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    return options


def _describe(cores: Cores, shared: bool) -> list[str]:
    notes = []
    if cores.server is None and not shared:
        notes.append("this system cannot pin processes to cores: every server may use all of them")
    elif cores.server is not None and cores.server == cores.load:
        notes.append("there is one core, so the load runs on the servers' own: rates are lower than they would be")
    busy = os.getloadavg()[0]
    if busy > 0.5:
        notes.append(
            f"the machine was busy before the run (load {busy:.1f}): trust ratios more than figures, and processor time most"
        )
    return notes


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end a run like Ctrl-C does, so that its servers are stopped then too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
