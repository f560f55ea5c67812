"""The generate routes."""

from __future__ import annotations

from scaleout.routes.table import Route

ROUTES: tuple[Route, ...] = ()
ABORT_ROUTES: tuple[Route, ...] = ()
LEGACY_ABORT_ROUTES: tuple[Route, ...] = ()
