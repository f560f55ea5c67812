"""Figures beside each other, with the targets that they are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from attrs import define, field, frozen

OURS, PEER, RUST = "ours", "peer", "rust"


@frozen
class Target:
    """What a figure shall be. `at_least`: times better than a peer, by peer. `at_most`: a bound on our own figure."""

    figure: str
    unit: str
    more_is_better: bool = True
    at_least: Mapping[str, float] = field(factory=dict)
    at_most: float | None = None

    def better(self, ours: float, peer: float) -> float:
        """How many times better ours is."""
        best, other = (ours, peer) if self.more_is_better else (peer, ours)
        return best / other if other else float("inf")


TARGETS: Sequence[Target] = (
    Target("start to first answer", "s", False, at_most=1.5),
    Target("start processor time", "s", False),
    Target("memory after 100 requests", "MB", False, at_most=300),
    Target("short", "req/s", at_least={PEER: 6}),
    Target("short processor time", "ms/req", False),
    Target("long", "req/s", at_least={PEER: 20, RUST: 0.7}),
    Target("long processor time", "ms/req", False),
    Target("long p99", "ms", False),
    Target("agent", "req/s", at_least={PEER: 20, RUST: 1.5}),
    Target("agent processor time", "ms/req", False),
    Target("agent p99", "ms", False),
    Target("derender", "req/s", at_least={PEER: 30}),
    Target("derender processor time", "ms/req", False),
    Target("derender p99", "ms", False),
    Target("stream", "chunks/s", at_least={PEER: 10}),
    Target("stream processor time", "ms/chunk", False),
    # Equal but for noise: two means of fifty single measurements.
    Target("stream last 50 / first 50", "×", False, at_most=1.25),
    Target("stream state", "bytes", False, at_most=1024),
    Target("sse", "chunks/s"),
    Target("sse processor time", "ms/chunk", False),
    Target("sse p99", "ms", False),
)
"""In the order in which they are shown."""


@define
class Results:
    """All that was measured on one model: for each figure and contender one number a round. `notes`: what could not be."""

    model: str
    rounds: dict[str, dict[str, list[float]]] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def add(self, contender: str, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            self.rounds.setdefault(figure, {}).setdefault(contender, []).append(value)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@frozen
class Row:
    target: Target
    values: Mapping[str, float]
    """Median over the rounds, by contender."""
    ratios: Mapping[str, float]
    """Times that ours is better, by peer."""

    @property
    def met(self) -> bool | None:
        """None where nothing was asked, or nothing was there to compare with."""
        asked = [self.ratios[peer] >= least for peer, least in self.target.at_least.items() if peer in self.ratios]
        if self.target.at_most is not None and OURS in self.values:
            asked.append(self.values[OURS] <= self.target.at_most)
        return all(asked) if asked else None


def make_rows(results: Results) -> list[Row]:
    rows = []
    for target in TARGETS:
        rounds = results.rounds.get(target.figure)
        if not rounds:
            continue
        ours = rounds.get(OURS, [])
        # Rounds were measured one right after the other, so a busy moment of the machine hits both numbers of a pair.
        ratios = {
            peer: median(target.better(*pair) for pair in zip(ours, theirs, strict=False))
            for peer, theirs in rounds.items()
            if peer != OURS and ours
        }
        rows.append(Row(target, {who: median(values) for who, values in rounds.items()}, ratios))
    return rows


def write_table(results: Results, contenders: Sequence[str]) -> str:
    """The rows as text; a peer without any figure gets no columns."""
    rows = make_rows(results)
    peers = [who for who in contenders if who != OURS and any(who in row.values for row in rows)]
    head = ["", "unit", OURS, *(word for peer in peers for word in (peer, "ratio")), "target", ""]
    table = [head, *(_cells(row, peers) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = [
        results.model,
        *("  " + _line(cells, widths) for cells in table),
        *(f"  - {note}" for note in results.notes),
    ]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = (
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(words).rstrip()


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    cells = [row.target.figure, row.target.unit, show(row.values.get(OURS))]
    for peer in peers:
        cells += [show(row.values.get(peer)), f"{show(row.ratios[peer])}×" if peer in row.ratios else ""]
    return [*cells, _target(row.target), {None: "", True: "met", False: "MISSED"}[row.met]]


def _target(target: Target) -> str:
    asked = [f"≥ {least:g}× {peer}" for peer, least in target.at_least.items()]
    if target.at_most is not None:
        asked.append(f"≤ {target.at_most:g}")
    return ", ".join(asked)


def show(value: float | None) -> str:
    """Three significant digits are all that a shared machine gives."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def to_json(results: Results) -> dict[str, object]:
    return {
        "model": results.model,
        "figures": [
            {
                "figure": row.target.figure,
                "unit": row.target.unit,
                "values": dict(row.values),
                "times_better": dict(row.ratios),
                "at_least": dict(row.target.at_least),
                "at_most": row.target.at_most,
                "met": row.met,
                "rounds": results.rounds[row.target.figure],
            }
            for row in make_rows(results)
        ],
        "notes": results.notes,
    }
