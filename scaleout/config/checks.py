"""What no single setting can know: settings that exclude each other, and settings that do nothing in this mode."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from attrs import evolve

from scaleout.config.flags import FLAGS
from scaleout.config.peer_flags import PEER_FLAGS
from scaleout.config.settings import Mode, ModeConfig
from scaleout.config.sources import Given
from scaleout.config.web import web_conflicts

FOR_REMOTE = frozenset(
    ("backend", "urls", "dialect", "api_key", "models", "check", "connect_timeout", "silence", "health_interval")
)
"""Settings of the engine that matter with --engine-url, by their fields."""


def conflicts(config: ModeConfig) -> Iterable[str]:
    """Every pair that cannot be meant together, as a sentence."""
    render_only = config.mode is Mode.RENDER_ONLY
    backend = config.engine.backend
    if not config.model:
        yield "no model: name a Hugging Face folder, a hub id or a GGUF file"
    if config.engine.urls and backend not in (None, "remote"):
        yield f"--engine-url is for the remote engine and conflicts with --engine-backend {backend}"
    if backend == "remote" and not config.engine.urls:
        yield "--engine-backend remote needs --engine-url"
    yield from _unfit_urls(config.engine.urls)
    if render_only and backend not in (None, "remote"):
        yield f"--engine-backend {backend} conflicts with {config.mode_source}: render-only runs no engine of its own"
    yield from web_conflicts(config.web)
    if config.engine.args and config.engine_backend != "vllm":
        yield "--engine-args needs --engine-backend vllm"
    if config.workers > 1 and not render_only:
        yield f"--workers {config.workers} conflicts with {config.mode_source}: an engine lives in one process"
    if config.workers > 1 and config.uds:
        yield f"--workers {config.workers} conflicts with --uds: processes share a port, not a Unix socket"


def _unfit_urls(urls: Sequence[str]) -> Iterable[str]:
    seen = set()
    for url in urls:
        if not _is_base(url):
            yield f"--engine-url {url}: the form is http://HOST:PORT"
        if url.rstrip("/") in seen:
            yield f"--engine-url {url} is given twice"
        seen.add(url.rstrip("/"))


def _is_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
        plain = not (parts.query or parts.fragment or parts.username or parts.password or parts.port == 0)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def meet_peer_flags(
    config: ModeConfig, peer: Mapping[str, Given], problems: list[str]
) -> tuple[ModeConfig, Sequence[str]]:
    """Hand vLLM's engine flags to its engine; name all others as ignored (notes) or refused (problems)."""
    arguments: dict[str, Any] = {}
    notes = []
    for name, item in peer.items():
        flag = PEER_FLAGS[name]
        if item.raw is None:
            problems.append(f"{item.where} needs a value")
        elif flag.fate == "ignored" or (flag.fate == "engine" and config.engine_backend is None):
            reason = flag.reason if flag.fate == "ignored" else "there is no engine in this mode"
            notes.append(f"{item.where} has no effect: {reason}")
        elif flag.fate == "engine" and config.engine_backend == "vllm":
            arguments[name.replace("-", "_")] = _as_json(item.raw)
        elif flag.fate == "engine" and name.endswith("-size") and str(item.raw) == "1":
            continue
        elif flag.fate == "engine":
            problems.append(f"{item.where} is {flag.reason}, and this is {config.engine_backend}; see --engine-backend")
        elif item.raw is not False:
            problems.append(f"{item.where} is not supported: {flag.reason}")
    if arguments:
        config = evolve(config, engine=evolve(config.engine, args={**arguments, **config.engine.args}))
    return config, notes


def idle_settings(config: ModeConfig, given: Mapping[str, Given]) -> Iterable[str]:
    """Settings that were given and that nothing reads in this mode, as sentences for the log."""
    for name, item in given.items():
        if FLAGS[name].owner != "engine":
            continue
        if config.engine_backend is None:
            yield f"{item.where} has no effect: there is no engine in this mode"
        elif config.engine_backend == "remote" and FLAGS[name].field not in FOR_REMOTE:
            yield f"{item.where} has no effect: the servers at --engine-url have settings of their own"
        elif config.engine_backend != "remote" and FLAGS[name].field in FOR_REMOTE - {"backend"}:
            yield f"{item.where} has no effect: it is about the servers at --engine-url"


def _as_json(raw: Any) -> Any:
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw)
    except ValueError:
        return raw
