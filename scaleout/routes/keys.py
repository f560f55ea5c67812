"""What the routes find in their application and their request, by typed key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aiohttp import web

from scaleout.config import ModeConfig
from scaleout.pipeline import Stages
from scaleout.pipeline.response_store import ResponseStore
from scaleout.routes.lifecycle import Lifecycle
from scaleout.routes.metrics import Metrics

if TYPE_CHECKING:
    from scaleout.routes.table import RouteTable
    from scaleout.routes.work import Turns

CONFIG = web.AppKey("config", ModeConfig)
STAGES = web.AppKey("stages", Stages)
METRICS = web.AppKey("metrics", Metrics)
LIFECYCLE = web.AppKey("lifecycle", Lifecycle)
RESPONSES = web.AppKey("responses", ResponseStore)
POOL = web.AppKey("pool", ThreadPoolExecutor)
"""Threads for work that is too long for the event loop."""
TURNS: web.AppKey[Turns] = web.AppKey("turns")
"""Who may do larger work now."""
TABLES: web.AppKey[tuple[RouteTable, ...]] = web.AppKey("tables", tuple)
"""The tables whose routes are offered."""
ROUTE_NAMES: web.AppKey[list[str]] = web.AppKey("route_names", list)
"""`METHOD path` of every route that is offered."""

REQUEST_ID = web.RequestKey("request_id", str)
"""The caller's `X-Request-Id`, checked; or a fresh one where every answer carries the header. Absent otherwise."""
