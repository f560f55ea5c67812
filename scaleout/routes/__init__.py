"""HTTP and nothing else: routes by mode, bodies in, answers and streams out. Knows no templates and no formats."""

from __future__ import annotations

from collections.abc import Mapping

from scaleout.config import Mode, ModeConfig
from scaleout.routes import count_tokens, coupled, derender, engines, generate, openapi, operations, render, tokenize
from scaleout.routes.table import RouteTable

OPERATIONS = RouteTable("operations", operations.OPERATIONS_ROUTES)
MODELS = RouteTable("models", operations.MODELS_ROUTES, works=True)
TOKENIZE = RouteTable("tokenize", tokenize.ROUTES, works=True, bounded=True)
TOKENIZER_INFO = RouteTable("tokenizer_info", tokenize.INFO_ROUTES, works=True)
RENDER = RouteTable("render", render.ROUTES, works=True, bounded=True)
DERENDER = RouteTable("derender", derender.ROUTES, works=True, bounded=True)
COUNT_TOKENS = RouteTable("count_tokens", count_tokens.ROUTES, works=True, bounded=True)
DOCS = RouteTable("docs", openapi.ROUTES)
GENERATE = RouteTable("generate", generate.ROUTES, works=True)
ABORT = RouteTable("abort", generate.ABORT_ROUTES)
LEGACY_ABORT = RouteTable("legacy_abort", generate.LEGACY_ABORT_ROUTES)
ENGINES = RouteTable("engines", engines.ROUTES)
COUPLED = RouteTable("coupled", coupled.ROUTES, works=True)

ROUTES: Mapping[Mode, tuple[RouteTable, ...]] = {
    Mode.RENDER_ONLY: (OPERATIONS, MODELS, TOKENIZE, RENDER, DERENDER, COUNT_TOKENS),
    Mode.TOKENS_ONLY: (OPERATIONS, MODELS, RENDER, DERENDER, GENERATE, ABORT, LEGACY_ABORT),
    Mode.STANDARD: (OPERATIONS, MODELS, TOKENIZE, COUPLED, COUNT_TOKENS),
}
SCALE_OUT: tuple[RouteTable, ...] = (RENDER, DERENDER, GENERATE, ABORT)
"""What a standard server offers beside its own routes when scale-out is switched on."""

SWITCH_HINT = (
    "Scale-out endpoints are disabled. "
    "Restart with --enable-scale-out or VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1 to enable them."
)


def route_tables(config: ModeConfig) -> tuple[RouteTable, ...]:
    """The tables of one server."""
    tables = ROUTES[config.mode]
    if config.mode is Mode.STANDARD and config.scale_out:
        tables += SCALE_OUT
    if config.mode is Mode.RENDER_ONLY and config.engine_backend is not None:
        tables += (COUPLED,)
    if config.engine_backend == "remote":
        tables += (ENGINES,)
    if config.web.docs:
        tables += (DOCS,)
    if config.enable_tokenizer_info_endpoint and config.mode is not Mode.TOKENS_ONLY:
        tables += (TOKENIZER_INFO,)
    return tables


def hints(config: ModeConfig) -> dict[str, str]:
    """For each path that another server would have: how to get it."""
    here = {path for table in route_tables(config) for _, path, _ in table.routes}
    found: dict[str, str] = {}
    for table in (*SCALE_OUT, *(table for tables in ROUTES.values() for table in tables), TOKENIZER_INFO, ENGINES):
        for _, path, _ in table.routes:
            if path not in here:
                found.setdefault(path, _hint(config, table, path))
    return found


def _hint(config: ModeConfig, table: RouteTable, path: str) -> str:
    if config.mode is Mode.STANDARD and table in SCALE_OUT:
        return SWITCH_HINT
    if table is TOKENIZER_INFO:
        return "Restart with --enable-tokenizer-info-endpoint to offer /tokenizer_info."
    if table is ENGINES:
        return "Restart with --engine-url URL to drive engines elsewhere."
    modes = " and ".join(mode.value for mode, tables in ROUTES.items() if table in tables)
    return f"{path} is served in {modes} mode; this server runs in {config.mode.value} mode."
