"""Each mode serves exactly its routes; what it does not serve, it says where to find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import serving

from scaleout.app import end_streams, engine_loop, make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.routes import ROUTES, SCALE_OUT, SWITCH_HINT, hints, route_tables

OPERATIONS = {
    ("GET", "/health"),
    ("GET", "/live"),
    ("GET", "/ready"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/version"),
    ("GET", "/load"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/server_info"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
}
TOKENIZE = {("POST", "/tokenize"), ("POST", "/detokenize")}
DIALECTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
COUPLED = {("POST", path) for path in DIALECTS} | {
    ("GET", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("POST", "/invocations"),
}
ENGINES = {("GET", "/engines"), ("POST", "/engines/{name}/drain"), ("POST", "/engines/{name}/resume")}
COUNT = {("POST", "/v1/messages/count_tokens")}
RENDER = {("POST", f"{path}/render") for path in DIALECTS}
DERENDER = {("POST", f"{path}/derender") for path in DIALECTS}
GENERATE = {("POST", "/inference/v1/generate"), ("POST", "/inference/v1/abort_requests")}
LEGACY_ABORT = {("POST", "/abort_requests")}

RENDER_ONLY = OPERATIONS | TOKENIZE | RENDER | DERENDER | COUNT
TOKENS_ONLY = OPERATIONS | RENDER | DERENDER | GENERATE | LEGACY_ABORT
STANDARD = OPERATIONS | TOKENIZE | COUPLED | COUNT

ECHO = EngineOptions(backend="echo")


def served(config: ModeConfig) -> list[tuple[str, str]]:
    return [(method, path) for table in route_tables(config) for method, path, _ in table.routes]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ModeConfig(Mode.RENDER_ONLY, model="m"), RENDER_ONLY),
        (ModeConfig(Mode.TOKENS_ONLY, model="m"), TOKENS_ONLY),
        (ModeConfig(Mode.STANDARD, model="m"), STANDARD),
        (ModeConfig(Mode.STANDARD, model="m", scale_out=True), STANDARD | RENDER | DERENDER | GENERATE),
        (
            ModeConfig(Mode.RENDER_ONLY, model="m", engine=EngineOptions(urls=("http://e",))),
            RENDER_ONLY | COUPLED | ENGINES,
        ),
        (
            ModeConfig(Mode.RENDER_ONLY, model="m", enable_tokenizer_info_endpoint=True),
            RENDER_ONLY | {("GET", "/tokenizer_info")},
        ),
    ],
)
def test_a_mode_serves_exactly_its_routes(config: ModeConfig, expected: set[tuple[str, str]]) -> None:
    assert sorted(served(config)) == sorted(expected)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_application_has_the_routes_of_its_table_and_no_others(mode: Mode) -> None:
    config = ModeConfig(mode, model="m", scale_out=True)
    app = make_app(config)
    mounted = {(r.method, r.resource.canonical.rstrip("/")) for r in app.router.routes() if r.resource is not None}
    assert {route for route in mounted if route[0] != "HEAD"} == set(served(config))
    assert {path for method, path in mounted if method == "HEAD"} == {
        path for method, path in mounted if method == "GET"
    }


def test_the_table_names_every_mode_and_each_table_once() -> None:
    assert set(ROUTES) == set(Mode)
    for tables in (*ROUTES.values(), ROUTES[Mode.STANDARD] + SCALE_OUT):
        assert len({table.name for table in tables}) == len(tables)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("scale_out", [True, False])
def test_every_route_of_another_server_has_a_hint(mode: Mode, scale_out: bool) -> None:
    config = ModeConfig(mode, model="m", scale_out=scale_out)
    elsewhere = {path for _, path in RENDER_ONLY | TOKENS_ONLY | STANDARD} - {path for _, path in served(config)}
    found = hints(config)
    assert elsewhere <= set(found)
    assert not {path for _, path in served(config)} & set(found)


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("llama2"))


def test_a_standard_server_says_how_to_enable_scale_out(model: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scaleout")
    config = ModeConfig(Mode.STANDARD, model=model, engine=ECHO)
    with serving(make_app(config)) as server:
        assert [record.getMessage() for record in caplog.records].count(SWITCH_HINT) == 1
        for _, path in RENDER | DERENDER | GENERATE:
            for method in ("POST", "GET"):
                answer = server.ask(method, path, b"{}" if method == "POST" else None)
                assert answer.status == 404
                assert answer.json["error"]["message"] == SWITCH_HINT  # in the shape of the API that was called
        legacy = server.post("/abort_requests", {})
        assert legacy.status == 404
        assert "tokens-only mode" in legacy.error["message"]


def test_with_scale_out_on_there_is_nothing_to_say(model: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scaleout")
    make_app(ModeConfig(Mode.STANDARD, model=model, engine=ECHO, scale_out=True))
    assert SWITCH_HINT not in caplog.text


def test_dedicated_servers_say_who_serves_the_coupled_routes(model: str) -> None:
    for mode, others in (
        (Mode.RENDER_ONLY, COUPLED | GENERATE | LEGACY_ABORT),
        (Mode.TOKENS_ONLY, COUPLED | TOKENIZE),
    ):
        engine: Any = EngineOptions() if mode is Mode.RENDER_ONLY else ECHO
        with serving(make_app(ModeConfig(mode, model=model, engine=engine))) as server:
            for _, path in others:
                answer = server.post(path, {})
                assert answer.status == 404
                message = answer.json["error"]["message"]  # in the shape of the API that was called
                assert f"this server runs in {mode} mode" in message
                assert path in message
            coupled = server.post("/v1/chat/completions", {}).error["message"]
            assert "served in standard mode" in coupled


def test_only_modes_with_an_engine_open_one(model: str) -> None:
    for mode in Mode:
        app = make_app(ModeConfig(mode, model=model, engine=EngineOptions() if mode is Mode.RENDER_ONLY else ECHO))
        assert (engine_loop in app.cleanup_ctx) == (end_streams in app.on_shutdown) == (mode is not Mode.RENDER_ONLY)
