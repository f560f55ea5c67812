"""With a key configured, nothing but the health routes answers without it: no route of the table, however its path is spelled."""

from __future__ import annotations

import itertools

import pytest
from serving import Server, read_answer

from scaleout.config import Mode
from scaleout.routes.auth import OPEN_PATHS

from .conftest import Serve

KEYS = ("first-key", "zweiter-schlüssel")


def spellings(path: str) -> list[str]:
    """Ways to write a path that a careless server would take for something else than it is."""
    return [path, path + "/", "/" + path, path.replace("/", "//"), "/api" + path, "/api/" + path, f"{path}?x=/health"]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        (Mode.RENDER_ONLY, {}),
        (Mode.TOKENS_ONLY, {}),
        (Mode.STANDARD, {"scale_out": True, "enable_tokenizer_info_endpoint": True}),
    ],
)
def test_every_route_of_the_servers_own_table_needs_a_key(serve: Serve, mode: Mode, settings: dict[str, bool]) -> None:
    server = serve(mode, api_keys=KEYS, root_path="/api", **settings)
    routes = sorted({(r.method, r.resource.canonical) for r in server.app.router.routes() if r.resource is not None})
    assert len(routes) > 40
    open_routes = set()
    for method, path in routes:
        body = b"{}" if method == "POST" else None
        answer = server.ask(method, path, body)
        if answer.status != 401:
            open_routes.add(path.removeprefix("/api").rstrip("/"))
            continue
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        if method != "HEAD":
            assert '"code":401' in answer.body.decode() or path.removeprefix("/api").startswith("/v1/messages")
        for spelled, wrong in itertools.product(spellings(path), ({}, {"Authorization": "Bearer wrong"})):
            assert server.ask(method, spelled, body, wrong).status == 401
    assert open_routes == OPEN_PATHS


@pytest.fixture
def server(serve: Serve) -> Server:
    return serve(api_keys=KEYS, root_path="/api")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer first-key"},
        {"Authorization": "BEARER   first-key"},
        {"Authorization": "Bearer zweiter-schlüssel".encode().decode("latin-1")},
        {"x-api-key": "first-key"},
        {"X-API-KEY": "first-key", "Authorization": "Bearer wrong"},
        {"x-api-key": "wrong", "Authorization": "Bearer first-key"},
    ],
)
def test_a_key_opens(server: Server, headers: dict[str, str]) -> None:
    assert server.get("/v1/models", headers).status == 200
    assert server.get("/api/v1/models", headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer FIRST-KEY"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer first-key"},
        {"Cookie": "x-api-key=first-key"},
    ],
)
def test_anything_else_does_not(server: Server, headers: dict[str, str]) -> None:
    answer = server.get("/v1/models", headers)
    assert answer.status == 401
    assert answer.error["type"] == "AuthenticationError"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/",
        "/v1",
        "//health",
        "/health/x",
        "/%2e%2e/v1/models",
        "/health/../v1/models",
        "/v1/models#/health",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "TRACE"])
def test_paths_without_a_route_say_nothing_without_a_key(server: Server, path: str, method: str) -> None:
    with server.connect() as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert read_answer(connection).status == 401


def test_a_wrong_method_says_nothing_without_a_key(server: Server) -> None:
    assert server.ask("DELETE", "/v1/models").status == 401
    assert server.ask("DELETE", "/v1/models", None, {"x-api-key": "first-key"}).status == 405


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_probes_need_no_key(server: Server, path: str) -> None:
    for spelled in (path, path + "/", "/api" + path):
        assert server.get(spelled).status == 200


def test_a_server_without_keys_is_open(serve: Serve) -> None:
    assert serve().get("/v1/models").status == 200
