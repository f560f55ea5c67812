"""`/openapi.json` and `/docs`: what this server offers, told by its own route tables and classes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from aiohttp import web

from scaleout import __version__
from scaleout.core import Json
from scaleout.dialects import DIALECTS, Dialect
from scaleout.routes.answers import json_response
from scaleout.routes.auth import OPEN_PATHS
from scaleout.routes.keys import CONFIG, TABLES
from scaleout.routes.schemas import (
    Schema,
    answer_schema,
    generate_schema,
    message_count_schema,
    request_schema,
    result_schema,
    schema_like,
)
from scaleout.routes.table import Handler, Route, RouteTable

ABOUT = {
    "render": "Request to token ids and sampling parameters",
    "derender": "Token ids to an answer: whole, chunk by chunk, or a stream as text/event-stream",
    "coupled": "Request to answer: render, generate and derender in one",
}
"""For routes whose handlers are made, and say nothing of themselves."""

WITHOUT_BODY = ("/ping", "/cancel", "/drain", "/resume")
"""Ends of paths to which nothing is posted but the wish itself."""

QUERIES: dict[str, dict[str, Schema]] = {
    "/v1/responses/{response_id}": {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": -1},
    },
    "/v1/responses/{response_id}/input_items": {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
    },
}
"""What GET routes read of the query."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
"""The page holds all of itself; a browser is told to load nothing from elsewhere, whoever may have changed it on the way."""


def describe(tables: tuple[RouteTable, ...], root_path: str, needs_key: bool) -> Json:
    """The OpenAPI 3.1 description of the routes in `tables`."""
    named: dict[str, Schema] = {
        "Error": schema_like({"error": {"message": "", "type": "", "param": None, "code": 0}}),
        "AnthropicError": schema_like({"type": "error", "error": {"type": "", "message": ""}}),
        "GenerateResponse": result_schema(),
    }
    named["GenerateRequest"] = generate_schema(named)
    for dialect in DIALECTS:
        named[_name(dialect, "Request")] = request_schema(dialect, named)
        named[_name(dialect, "Answer")] = answer_schema(dialect)
    named["MessageCountRequest"] = message_count_schema(named)
    paths: dict[str, Json] = {}
    for table in tables:
        for method, path, handler in table.routes:
            operation = _operation(table, method, path, handler)
            if needs_key and path in OPEN_PATHS:
                operation["security"] = []
            paths.setdefault(path, {})[method.lower()] = operation
    wire: dict[str, Json] = {
        "openapi": "3.1.0",
        "info": {
            "title": "scaleout",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": named},
    }
    if needs_key:
        wire["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        wire["security"] = [{"bearer": []}, {"key": []}]
    return wire


def _name(dialect: Dialect, what: str) -> str:
    return dialect.NAME.capitalize() + what


def _operation(table: RouteTable, method: str, path: str, handler: Handler) -> dict[str, Json]:
    words = [word for word in path.replace("{", "").replace("}", "").split("/") if word]
    operation: dict[str, Json] = {
        "operationId": "_".join((method.lower(), *words)).replace(".", "_"),
        "tags": [table.name],
        "summary": (handler.__doc__ or ABOUT.get(table.name, path)).strip().splitlines()[0],
        "responses": {"200": _answer(path, method)},
    }
    variables = [word.strip("{}") for word in path.split("/") if word.startswith("{")]
    if variables:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in variables
        ]
        if method == "GET":
            queries = QUERIES.get(path, {}).items()
            operation["parameters"] += [{"name": name, "in": "query", "schema": schema} for name, schema in queries]
    taken = dict(_taken(path, method))
    if taken:
        operation["requestBody"] = {"required": True, "content": taken}
    if method != "GET" or table.works:
        error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
        shown = {"application/json": {"schema": _ref(error)}}
        operation["responses"] |= {
            "4XX": {"description": "What is wrong with the request", "content": shown},
            "5XX": {"description": "What is wrong with the server", "content": shown},
        }
    return operation


def _taken(path: str, method: str) -> Iterator[tuple[str, Json]]:
    """Media types of a body and their schemas."""
    if method != "POST" or path.endswith(WITHOUT_BODY):
        return
    schema: Schema = {"type": "object"}
    for dialect in DIALECTS:
        if path in (dialect.PATH, f"{dialect.PATH}/render"):
            schema = _ref(_name(dialect, "Request"))
        elif path == f"{dialect.PATH}/derender":
            yield "text/event-stream", {"schema": {"type": "string"}}
    if path.endswith("/count_tokens"):
        schema = _ref("MessageCountRequest")
    elif path.endswith("/generate"):
        schema = _ref("GenerateRequest")
    elif path.endswith("/abort_requests"):
        schema = {"type": "object", "properties": {"request_ids": {"type": "array", "items": {"type": "string"}}}}
    yield "application/json", {"schema": schema}


def _answer(path: str, method: str) -> Json:
    content: dict[str, Json] = {"application/json": {"schema": {}}}
    for dialect in DIALECTS:
        of_one = path.startswith(dialect.PATH + "/{") and method != "DELETE" and not path.endswith("/input_items")
        if path == dialect.PATH or of_one:
            content["application/json"] = {"schema": _ref(_name(dialect, "Answer"))}
        elif path == f"{dialect.PATH}/render":
            one = _ref("GenerateRequest")
            content["application/json"] = {
                "schema": {"type": "array", "items": one} if dialect.NAME == "completions" else one
            }
        if (path in (dialect.PATH, f"{dialect.PATH}/derender") and method == "POST") or "stream" in QUERIES.get(
            path, {}
        ):
            content["text/event-stream"] = {"schema": {"type": "string"}}
    if path.endswith("/generate"):
        content = {
            "application/json": {"schema": _ref("GenerateResponse")},
            "text/event-stream": {"schema": {"type": "string"}},
        }
    elif path in OPEN_PATHS or path.endswith("/abort_requests"):
        return {"description": "Yes"}
    elif path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    return {"description": "The answer", "content": content}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# ---------------------------------------------------------------------------------------------- routes


async def openapi(request: web.Request) -> web.StreamResponse:
    """The OpenAPI description of this server."""
    config = request.app[CONFIG]
    return json_response(describe(request.app[TABLES], config.root_path.rstrip("/"), bool(config.api_keys)))


async def docs(_: web.Request) -> web.StreamResponse:
    """The same as a page to read and to try requests from."""
    page = files("scaleout.routes").joinpath("docs.html").read_text(encoding="utf-8")
    return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": POLICY})


ROUTES: tuple[Route, ...] = (("GET", "/openapi.json", openapi), ("GET", "/docs", docs))
