"""What is counted about engines elsewhere, each under its name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds to a first token: a short prompt on an idle engine, up to a full one's queue."""


class EngineMetrics:
    """A listener of the fleet. Outcomes: finished, left (the client went, or had enough), refused (4xx), busy (429, 503), failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        named = ("engine",)
        self._up = Gauge(
            "scaleout_remote_engine_up",
            "1 while the engine gets requests, unless it is drained.",
            named,
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._in_flight = Gauge(
            "scaleout_remote_engine_requests_in_flight",
            "Requests that an engine works on now.",
            named,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._requests = Counter(
            "scaleout_remote_engine_requests",
            "Requests sent to an engine, by how they ended.",
            ("engine", "outcome"),
            registry=registry,
        )
        self._retried = Counter(
            "scaleout_remote_engine_retries", "Requests that came from another engine.", named, registry=registry
        )
        self._ejected = Counter(
            "scaleout_remote_engine_ejections", "Times that an engine was put out.", named, registry=registry
        )
        self._first_token = Histogram(
            "scaleout_remote_engine_first_token_seconds",
            "Time from sending a request to an engine to its first token.",
            named,
            buckets=BUCKETS,
            registry=registry,
        )

    def up(self, engine: str, is_up: bool) -> None:
        self._up.labels(engine).set(is_up)

    def ejected(self, engine: str) -> None:
        self._ejected.labels(engine).inc()

    def retried(self, engine: str) -> None:
        self._retried.labels(engine).inc()

    def began(self, engine: str) -> None:
        self._in_flight.labels(engine).inc()

    def first_token(self, engine: str, seconds: float) -> None:
        self._first_token.labels(engine).observe(seconds)

    def ended(self, engine: str, outcome: str) -> None:
        self._in_flight.labels(engine).dec()
        self._requests.labels(engine, outcome).inc()
