"""Health, readiness, models, metrics: what orchestrators and people ask a server about itself."""

from __future__ import annotations

import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from scaleout import __version__
from scaleout.core import Json
from scaleout.errors import EngineFailed, Overloaded
from scaleout.render.multimodal import Multimodal
from scaleout.routes.answers import json_response
from scaleout.routes.keys import CONFIG, LIFECYCLE, METRICS, ROUTE_NAMES, STAGES
from scaleout.routes.lifecycle import RETRY_ELSEWHERE, WHY, State

BORN = int(time.time())
"""`created` of every model card: a card that is asked for twice is the same card."""


async def live(_: web.Request) -> web.Response:
    """The process runs and its event loop turns."""
    return web.Response()


async def health(request: web.Request) -> web.Response:
    """200 and nothing else; 503 while the model is not there or when the engine is dead. Draining is healthy."""
    check_health(request)
    return web.Response()


async def ready(request: web.Request) -> web.Response:
    """200 while new work is taken; 503 while loading, draining, or with a dead engine."""
    check_health(request)
    if request.app[LIFECYCLE].state is not State.READY:
        raise Overloaded(WHY[State.DRAINING], retry_after=RETRY_ELSEWHERE)
    return web.Response()


def check_health(request: web.Request) -> None:
    if request.app[LIFECYCLE].state is State.LOADING:
        raise Overloaded(WHY[State.LOADING], retry_after=RETRY_ELSEWHERE)
    engine = request.app[STAGES].engine
    if engine is not None:
        try:
            engine.health()
        except EngineFailed:
            # What broke is in the log; a probe without a key learns only that it broke.
            elsewhere = request.app[CONFIG].engine_backend == "remote"
            raise EngineFailed("No engine takes requests" if elsewhere else "The engine is dead", dead=True) from None


async def version(_: web.Request) -> web.Response:
    return json_response({"version": __version__})


async def load(request: web.Request) -> web.Response:
    """Requests that do work now, of every stage."""
    return json_response({"server_load": request.app[LIFECYCLE].in_flight})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[METRICS].exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def models(request: web.Request) -> web.Response:
    """One card for each served name. `root` is a name as well: where the model lies on this host concerns nobody."""
    cards = [_card(request, name) for name in request.app[CONFIG].served_model_names]
    return json_response({"object": "list", "data": cards})


async def model(request: web.Request) -> web.Response:
    """The card of one served name"""
    return json_response(_card(request, request.app[STAGES].served(request.match_info["model"])))


def _card(request: web.Request, name: str) -> Json:
    config, files = request.app[CONFIG], request.app[STAGES].files
    root, max_model_len = config.served_model_names[0], config.max_model_len or files.max_model_len
    return {
        "id": name,
        "object": "model",
        "created": BORN,
        "owned_by": "scaleout",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [
            {
                "id": f"modelperm-{name}",
                "object": "model_permission",
                "created": BORN,
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }


def media_facts(multimodal: Multimodal | None) -> Json:
    """Which media this server prepares, and as what it takes and writes them; None for a text model."""
    if multimodal is None:
        return None
    return {
        "kinds": list(multimodal.kinds),
        "missing": multimodal.missing,
        "mm_payloads": ["tensors", "source", "none"],
    }


async def server_info(request: web.Request) -> web.Response:
    """What this server is and can do, for people and for a program that puts the stages together."""
    route_names = request.app[ROUTE_NAMES]
    stages = request.app[STAGES]
    config, files = request.app[CONFIG], stages.files
    return json_response(
        {
            "version": __version__,
            "mode": config.mode.value,
            "scale_out": config.scale_out,
            "state": request.app[LIFECYCLE].state.value,
            "model": config.served_model_names[0],
            "served_model_names": list(config.served_model_names),
            "max_model_len": config.max_model_len or files.max_model_len,
            "vocab_size": files.vocab_size,
            "eos_token_ids": list(files.eos_token_ids),
            "tokenizer": stages.tokenizer_facts(),
            "engine": config.engine_backend,
            "tool_call_parser": config.tool_call_parser,
            "reasoning_parser": config.reasoning_parser,
            "output_format": stages.output_format,
            "self_test": {finding.capability: finding.verdict for finding in stages.findings},
            "media": media_facts(stages.multimodal),
            "routes": route_names,
        }
    )


OPERATIONS_ROUTES = (
    ("GET", "/health", health),
    ("GET", "/live", live),
    ("GET", "/ready", ready),
    ("GET", "/ping", health),
    ("POST", "/ping", health),
    ("GET", "/version", version),
    ("GET", "/load", load),
    ("GET", "/metrics", metrics),
)
MODELS_ROUTES = (
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{model}", model),
    ("GET", "/server_info", server_info),
)
