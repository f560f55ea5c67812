"""/tokenize, /detokenize, /tokenizer_info."""

from __future__ import annotations

from scaleout.routes.table import Route

ROUTES: tuple[Route, ...] = ()
INFO_ROUTES: tuple[Route, ...] = ()
