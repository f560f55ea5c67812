"""The render routes."""

from __future__ import annotations

from scaleout.routes.table import Route

ROUTES: tuple[Route, ...] = ()
