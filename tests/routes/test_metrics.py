"""The counters of one server: every request once, under the path of the route table, whoever sends what."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Server

from scaleout.config import Mode
from scaleout.routes.keys import METRICS

from .conftest import Serve


def samples(server: Server) -> dict[tuple[str, ...], float]:
    """Values by name and labels, as a scraper reads them."""
    text = server.get("/metrics").body.decode()
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests(server: Server) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in samples(server).items() if key[0] == "scaleout_requests_total"}


def test_requests_are_counted_by_route_method_and_status(serve: Serve) -> None:
    server = serve(root_path="/api")
    for path in ("/health", "/health/", "/api/health", "/api/health/?x=1"):
        assert server.get(path).status == 200
    server.ask("HEAD", "/version")
    server.post("/version", {})
    counted = requests(server)
    assert counted["method=GET", "route=/health", "status=200"] == 4
    assert counted["method=HEAD", "route=/version", "status=200"] == 1
    assert counted["method=POST", "route=unmatched", "status=405"] == 1


def test_no_client_can_make_series_of_its_own(serve: Serve) -> None:
    server = serve()
    before = len(requests(server))
    for i in range(50):
        server.get(f"/nothing/{i}")
        server.ask("PROPFIND", f"/other/{i}")
    assert len(requests(server)) <= before + 3


def test_durations_and_gauges_are_there(serve: Serve) -> None:
    server = serve()
    server.get("/health")
    found = samples(server)
    assert found["scaleout_request_seconds_count", "route=/health"] == 1
    assert found[("scaleout_ready",)] == 1
    assert found[("scaleout_requests_in_flight",)] == 0
    assert found[("scaleout_engine_running",)] == 0
    assert found[("process_resident_memory_bytes",)] > 1e6


def test_counters_of_the_stages_can_be_added_to(serve: Serve) -> None:
    server = serve()
    metrics = server.app[METRICS]
    for counter in (
        metrics.rendered_tokens,
        metrics.derendered_tokens,
        metrics.generated_tokens,
        metrics.neutralised_tokens,
    ):
        counter.inc(3)
    found = samples(server)
    names = ("rendered_tokens", "derendered_tokens", "generated_tokens", "neutralised_control_tokens")
    assert [found[(f"scaleout_{name}_total",)] for name in names] == [3, 3, 3, 3]


def test_two_servers_of_one_process_count_apart(serve: Serve) -> None:
    one, two = serve(), serve()
    one.get("/health")
    assert ("method=GET", "route=/health", "status=200") not in requests(two)


def test_the_access_log_has_one_line_for_each_request_and_none_of_its_own_making(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "scaleout.access")
    server = serve(access_log=True, disable_access_log_for_endpoints=("/health",))
    server.get("/health")
    server.get("/nothing%0aforged?key=secret")
    lines: list[Any] = [record.getMessage() for record in caplog.records if record.name == "scaleout.access"]
    assert len(lines) == 1
    assert '"GET /nothing%0Aforged" 404' in lines[0] or '"GET /nothing%0aforged" 404' in lines[0]
    assert "secret" not in lines[0]


def test_unknown_fields_are_counted(serve: Serve) -> None:
    server = serve(Mode.STANDARD, scale_out=True)
    body = {"prompt": "hi", "max_tokens": 1, "no_such_field": 1, "nor_this": None}
    for path in ("/v1/completions", "/v1/completions/render"):
        assert server.post(path, body).status == 200
    text = server.get("/metrics").body.decode()
    assert "scaleout_unknown_fields_total 4.0" in text
