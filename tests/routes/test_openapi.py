"""The description of the API: valid, complete, and true of the bodies that the dialects read."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from serving import Server

from scaleout.config import Mode
from scaleout.config.web import WebOptions
from scaleout.dialects import DIALECTS, Dialect
from scaleout.routes.auth import OPEN_PATHS
from scaleout.routes.schemas import REQUIRED
from tests.dialects.bodies import RICH

from .conftest import Serve

Json = Any
DIALECT_NAMES = [dialect.NAME for dialect in DIALECTS]


@pytest.fixture(scope="module")
def spec(request: pytest.FixtureRequest) -> Json:
    """The description of a server with every route of its mode."""
    from serving import serving

    from scaleout.app import make_app

    config = request.getfixturevalue("echo_config")(Mode.STANDARD, scale_out=True)
    with serving(make_app(config)) as server:
        return server.get("/openapi.json").json


def body_validator(spec: Json, name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": spec["components"]})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("keys", [(), ("k",)])
def test_the_description_is_valid_and_names_every_route(serve: Serve, mode: Mode, keys: tuple[str, ...]) -> None:
    server = serve(mode, api_keys=keys, root_path="/api")
    told = server.get("/openapi.json", {"x-api-key": "k"}).json
    OpenAPIV31SpecValidator(told).validate()
    named = {f"{method.upper()} {path}" for path, methods in told["paths"].items() for method in methods}
    assert named == set(server.get("/server_info", {"x-api-key": "k"}).json["routes"])
    assert told["servers"] == [{"url": "/api"}]
    free = {path for path, methods in told["paths"].items() if any(m.get("security") == [] for m in methods.values())}
    assert free == (set(OPEN_PATHS) if keys else set())
    ids = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] for methods in told["paths"].values() for operation in methods.values())


@pytest.mark.parametrize("name", RICH)
def test_bodies_that_a_dialect_reads_fit_its_schema(spec: Json, name: str) -> None:
    _, body = RICH[name]
    validator = body_validator(spec, f"{name.capitalize()}Request")
    assert [error.message for error in validator.iter_errors(body)] == []
    for wrong in ({**body, "temperature": "hot"}, {**body, "stream": "perhaps"}, {"model": "m"}):
        assert list(validator.iter_errors(wrong))


@pytest.mark.parametrize("dialect", DIALECTS, ids=DIALECT_NAMES)
def test_every_field_that_a_dialect_reads_is_told(spec: Json, dialect: Dialect) -> None:
    schema = spec["components"]["schemas"][f"{dialect.NAME.capitalize()}Request"]
    told = set(schema["properties"])
    assert told <= dialect.FIELDS
    if dialect.NAME != "responses":  # whose class has fields of its parent's that this API does not know
        assert told == dialect.FIELDS
    assert schema["required"] == list(REQUIRED[dialect.NAME])
    for name in schema["required"]:
        given = {key: value for key, value in RICH[dialect.NAME][1].items() if key != name}
        with pytest.raises(Exception, match=name):
            dialect.parse(given)


def test_what_render_writes_fits_what_generate_takes(spec: Json, serve: Serve) -> None:
    server = serve(Mode.RENDER_ONLY)
    (rendered,) = server.post("/v1/completions/render", {"prompt": "one two", "stop": "x", "logit_bias": {"5": 1}}).json
    assert [error.message for error in body_validator(spec, "GenerateRequest").iter_errors(rendered)] == []
    generated = serve(Mode.TOKENS_ONLY).post("/inference/v1/generate", rendered).json
    assert [error.message for error in body_validator(spec, "GenerateResponse").iter_errors(generated)] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "one", "max_tokens": 2, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
    ],
)
def test_answers_fit_their_schema(spec: Json, serve: Serve, path: str, body: Json) -> None:
    server = serve(Mode.STANDARD, chat_template="{{ messages[0].content }}")
    answer = server.post(path, body).json
    schema = spec["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    validator = body_validator(spec, schema["$ref"].rpartition("/")[2])
    assert [error.message for error in validator.iter_errors(answer)] == []
    error = server.post(path, {**body, "temperature": -1}).json
    named = spec["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"]
    assert [one.message for one in body_validator(spec, named.rpartition("/")[2]).iter_errors(error)] == []


def test_pages_can_be_left_out_and_need_the_key(serve: Serve) -> None:
    closed = serve(Mode.RENDER_ONLY, web=WebOptions(docs=False))
    guarded = serve(Mode.RENDER_ONLY, api_keys=("k",))
    for path in ("/openapi.json", "/docs"):
        assert closed.get(path).status == 404
        assert guarded.get(path).status == 401
        assert guarded.get(path, {"x-api-key": "k"}).status == 200


def test_the_page_loads_nothing_from_elsewhere(serve: Serve) -> None:
    server: Server = serve(Mode.RENDER_ONLY)
    page = server.get("/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert b"http://" not in page.body
    assert b"https://" not in page.body
