"""The benchmark measures what it says: directions, pairs, targets, and that no server of a run outlives it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.frontend import Plan, measure
from bench.loads import SHORT_SCRIPT, Outcome, read_client, read_wrk
from bench.models import Model, Unavailable, find_model
from bench.report import OURS, PEER, RUST, Results, make_rows, to_json, write_table
from bench.servers import Contender, Cores, choose_cores, find_contenders

OUR_COMMAND = ["python", "-m", "scaleout", "launch", "render"]
WRK = """\
Running 1s test @ http://127.0.0.1:8477/v1/chat/completions/render
  1 threads and 8 connections
  11184 requests in 6.03s, 9.96MB read
{fault}Requests/sec:   1854.97
Transfer/sec:      1.65MB
"""


def test_short_chats_are_those_of_the_acceptance(shared_folder: Path) -> None:
    assert SHORT_SCRIPT.read_bytes() == (shared_folder / "bench" / "short.lua").read_bytes()


def test_wrk_is_believed_only_when_all_answers_were_good() -> None:
    assert read_wrk(WRK.format(fault="")) == Outcome({"short": 1854.97}, 11184)
    for fault in ("  Non-2xx or 3xx responses: 7\n", "  Socket errors: connect 0, read 3, write 0, timeout 0\n"):
        with pytest.raises(Unavailable, match=fault.strip()):
            read_wrk(WRK.format(fault=fault))


def test_every_round_has_texts_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    client = tmp_path / "client.py"
    client.write_text("import random\nprint(random.Random(7).random())")
    for round_ in (0, 1, 1, 2):
        subprocess.run([sys.executable, "-m", "bench.reseed", str(round_), str(client)], check=True)
    own, first, again, second = (float(line) for line in capfd.readouterr().out.split())
    assert own == random.Random(7).random()
    assert first == again
    assert len({own, first, second}) == 3


def test_a_client_that_counted_errors_gives_no_figure() -> None:
    line = '{"scenario": "agent", "requests": 72, "rps": 26.9, "p50_ms": 20.0, "p99_ms": 80.5, "errors": %d}'
    assert read_client("agent", line % 0) == Outcome({"agent": 26.9, "agent p99": 80.5}, 72)
    for text in (line % 3, "", "{'error': 'no such route'}", '{"scenario": "long", "errors": 0}'):
        with pytest.raises(Unavailable):
            read_client("agent", text)


def test_a_ratio_says_how_many_times_better_ours_is_round_by_round() -> None:
    results = Results("m")
    # The machine is three times slower in the second round, for both.
    for ours, theirs in ((1200, 100), (400, 40), (1200, 120)):
        results.add(OURS, {"short": ours, "start to first answer": 1.0})
        results.add(PEER, {"short": theirs, "start to first answer": 30.0})
    rows = {row.target.figure: row for row in make_rows(results)}
    assert rows["short"].values == {OURS: 1200, PEER: 100}
    assert rows["short"].ratios == {PEER: 10}
    assert rows["start to first answer"].ratios == {PEER: 30}


@pytest.mark.parametrize(
    ("ours", "peer", "rust", "met"),
    [
        (210, 10, 100, True),
        (210, 10, 150, False),
        (190, 10, 100, False),
        (210, None, 100, True),
        (210, None, None, None),
    ],
)
def test_a_target_holds_against_every_peer_that_was_measured(
    ours: float, peer: float | None, rust: float | None, met: bool | None
) -> None:
    results = Results("m")
    for who, value in ((OURS, ours), (PEER, peer), (RUST, rust)):
        if value is not None:
            results.add(who, {"agent": value})
    (row,) = make_rows(results)
    assert row.met is met
    assert ("MISSED" in write_table(results, [OURS, PEER, RUST])) is (met is False)


def test_a_bound_is_on_our_own_figure() -> None:
    results = Results("m")
    results.add(PEER, {"memory after 100 requests": 1100})
    assert [row.met for row in make_rows(results)] == [None]
    results.add(OURS, {"memory after 100 requests": 301})
    assert [row.met for row in make_rows(results)] == [False]


def test_peers_are_found_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "venv" / "bin" / "vllm"
    monkeypatch.setenv("SCALEOUT_PEER", str(command))
    found, notes = find_contenders(Path("scaleout"))
    assert [who.name for who in found] == [OURS]
    assert "SCALEOUT_PEER" in notes[0]
    command.parent.mkdir(parents=True)
    command.touch()
    (tmp_path / "vllm-rs").touch()
    found, notes = find_contenders(Path("scaleout"))
    assert [who.name for who in found] == [OURS, PEER, RUST]
    assert not notes


def test_what_is_absent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("CACHE", "SHARED"):
        monkeypatch.setattr(f"bench.models.{folder}", tmp_path)
    with pytest.raises(Unavailable, match="recipes"):
        find_model("qwen3")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_a_core_is_held_only_while_servers_start() -> None:
    before = os.sched_getaffinity(0)
    cores = choose_cores()
    try:
        with cores.for_server():
            assert os.sched_getaffinity(0) == {cores.server}
        assert os.sched_getaffinity(0) == {cores.load}
    finally:
        os.sched_setaffinity(0, before)


def test_a_run_measures_our_server_and_ends_it(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.frontend.QUICK_STARTS", 1)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ours = Contender(OURS, [sys.executable, *OUR_COMMAND[1:]], ["--workers", "1", "--no-access-log"])
    lame = Contender(RUST, [sys.executable, "-c", "raise SystemExit('out of order')"], [], derenders=False)
    model = Model("qwen3", str(tiny_model("qwen3")), context=8192)
    plan = Plan(["sse", "long"], rounds=1, seconds=0.5, cores=Cores(None, None), folder=tmp_path)
    results = measure(plan, model, [ours, lame])
    values = {figure["figure"]: figure["values"] for figure in to_json(results)["figures"]}  # type: ignore[attr-defined]
    assert values["sse"][OURS] > 0
    assert 0 < values["sse processor time"][OURS] < 1000
    assert 0 < values["memory after 100 requests"][OURS] < 2000
    assert 0 < values["start to first answer"][OURS] < 60
    refused, too_long = results.notes
    assert "out of order" in refused
    assert too_long.startswith("long: needs a context of")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
