"""What the server counts about itself, in one registry per application."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from scaleout.pipeline.tallies import Tallies
from scaleout.routes.engine_metrics import EngineMetrics
from scaleout.routes.lifecycle import Lifecycle, State

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Seconds. A short render is near the first, a long stream near the last."""

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
UNMATCHED = "unmatched"
"""The route label of every path that has no route, so that scanners cannot create series."""


class Metrics:
    """Counters for the routes to add to. Route labels are paths of the route table, never the caller's text."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        engine_stats: Callable[[], Any] | None = None,
        shared_folder: Path | None = None,
    ) -> None:
        """`engine_stats`: an attrs object of numbers, read at each scrape.

        `shared_folder`: where several processes keep their counts, so that each of them can tell the sum.
        """
        if shared_folder is not None:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(shared_folder)
            values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self._own = CollectorRegistry()
        self._told = CollectorRegistry()
        self._told.register(_Gauges(lifecycle, engine_stats))
        if shared_folder is None:
            ProcessCollector(registry=self._told)
        else:
            MultiProcessCollector(self._told, str(shared_folder))  # type: ignore[no-untyped-call]
        self._registries = (self._told,) if shared_folder is not None else (self._own, self._told)
        self._requests = self._counter(
            "requests", "Requests answered; status 499: client gone.", "route", "method", "status"
        )
        self._seconds = Histogram(
            "scaleout_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("route",),
            buckets=BUCKETS,
            registry=self._own,
        )
        in_flight = Gauge(
            "scaleout_requests_in_flight",
            "Requests that do work now.",
            registry=self._own,
            multiprocess_mode="livesum",
        )
        lifecycle.on_change = in_flight.inc
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.refused = self._counter("requests_refused", "Requests answered 503: full, loading, leaving, or dead.")
        self.rendered_tokens = self._counter("rendered_tokens", "Prompt tokens that render wrote.")
        self.derendered_tokens = self._counter("derendered_tokens", "Generated tokens that derender read.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that the generate route answered.")
        self.neutralised_tokens = self._counter(
            "neutralised_control_tokens", "Special tokens in supplied text, made plain."
        )
        self.repaired_headers = self._counter(
            "repaired_headers", "Message headers of a model that were slightly off, and read all the same."
        )
        self.unknown_fields = self._counter("unknown_fields", "Request fields ignored because nothing here knows them.")

    def watch(self, tallies: Tallies) -> None:
        """Count what `tallies` tell, from now on."""
        tallies.neutralised.listener = self.neutralised_tokens.inc
        tallies.repaired.listener = self.repaired_headers.inc

    def watch_engines(self) -> EngineMetrics:
        """Count what happens to engines elsewhere, from now on."""
        return EngineMetrics(self._own)

    def tell(self, collector: Collector) -> None:
        """Have this process tell what `collector` knows, too."""
        self._told.register(collector)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"scaleout_{name}", text, labels, registry=self._own)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method, status)
        series = self._series.get(key)
        if series is None:
            # Looking a child up by its labels takes a lock and builds a tuple of strings: done once for each series.
            named = method if method in METHODS else "other"
            series = self._series[key if named == method else (route, named, status)] = (
                self._requests.labels(route, named, str(status)),
                self._seconds.labels(route),
            )
        series[0].inc()
        series[1].observe(seconds)

    def exposition(self) -> bytes:
        """The Prometheus text format, of all processes together where there are several."""
        return b"".join(map(generate_latest, self._registries))


class _Gauges(Collector):
    """Values that others hold, read when somebody asks."""

    def __init__(self, lifecycle: Lifecycle, engine_stats: Callable[[], Any] | None) -> None:
        self._lifecycle = lifecycle
        self._engine_stats = engine_stats

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield GaugeMetricFamily("scaleout_ready", "1 while new work is taken.", self._lifecycle.state is State.READY)
        stats = self._engine_stats() if self._engine_stats is not None else None
        if stats is not None:
            for name, value in attrs.asdict(stats, recurse=False).items():
                text = f"Engine: {name.replace('_', ' ')}."
                if isinstance(value, int | float):
                    yield GaugeMetricFamily(f"scaleout_engine_{name}", text, value)
                elif isinstance(value, Mapping):
                    family = GaugeMetricFamily(f"scaleout_engine_{name}", text, labels=("kind",))
                    for kind, count in list(value.items()):
                        family.add_metric((kind,), count)
                    yield family
