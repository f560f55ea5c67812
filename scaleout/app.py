"""The one place where parts are wired together: `make_app` assembles a server, `run` keeps it up until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from aiohttp import web
from aiohttp.http import HttpProcessingError

from scaleout.config import Mode, ModeConfig
from scaleout.generate.remote.board import Seat
from scaleout.listener import BACKLOG, bind, url
from scaleout.logs import start_logging
from scaleout.pipeline import Stages
from scaleout.pipeline.media import keep_torch_out
from scaleout.pipeline.response_store import open_store
from scaleout.pipeline.stages import CHECKS, LoadedText
from scaleout.routes import SWITCH_HINT, hints, route_tables
from scaleout.routes.access_log import log_fields, log_line
from scaleout.routes.auth import OPEN_PATHS, KeyRing
from scaleout.routes.cors import Cors, answer_preflights, write_cors
from scaleout.routes.keys import CONFIG, LIFECYCLE, METRICS, POOL, RESPONSES, ROUTE_NAMES, STAGES, TABLES, TURNS
from scaleout.routes.lifecycle import Lifecycle
from scaleout.routes.media import mount_media
from scaleout.routes.metrics import Metrics
from scaleout.routes.middleware import (
    count_requests,
    identify_requests,
    require_key,
    shape_errors,
    write_request_id,
)
from scaleout.routes.table import mount
from scaleout.routes.work import Turns
from scaleout.tls import keep_fresh, open_tls
from scaleout.tokenizer.memory import share_one_heap
from scaleout.workers import Worker, fork_workers

LOG = logging.getLogger(__name__)

POOL_NAME = "front"
YOUNG_OBJECTS = 20_000
"""Objects made between two looks for circles among them. A request makes hundreds and hardly any circle: at Python's own 700, the looks
take a tenth of the time of short requests. The price is a few megabytes."""
SWITCH_SECONDS = 0.001
"""How long a thread with long work keeps the interpreter while the event loop waits for it. Python's own 5 ms, twice or thrice, are what
others notice. Not in a process with an engine, whose loop is the thread that must not be interrupted."""
LOADING: web.AppKey[asyncio.Task[None]] = web.AppKey("loading", asyncio.Task)
"""Loads the model. `run` waits for it while the health routes already answer."""


def make_app(
    config: ModeConfig,
    *,
    load_in_background: bool = False,
    metrics_folder: Path | None = None,
    loaded: LoadedText | None = None,
    seat: Seat | None = None,
) -> web.Application:
    """A server for `config`, assembled but not started.

    Its start-up loads the model; with `load_in_background` it does so beside the serving, and work gets 503 until then.
    `metrics_folder` is where several processes count together, `loaded` what their parent has loaded for them, `seat` where they agree
    about engines elsewhere.
    """
    app = web.Application(
        client_max_size=config.limits.max_body_bytes,
        handler_args={
            "handler_cancellation": True,
            "auto_decompress": False,
            "keepalive_timeout": config.keep_alive_timeout,
            "access_log": None,
        },
    )
    lifecycle = Lifecycle(config.limits.max_concurrent_work)
    stages = Stages(config, loaded, seat)
    app[CONFIG] = config
    app[STAGES] = stages
    app[RESPONSES] = open_store(config)
    app[LIFECYCLE] = lifecycle
    app[TURNS] = Turns()
    app[METRICS] = Metrics(
        lifecycle, lambda: stages.engine.stats() if stages.engine is not None else None, metrics_folder
    )
    stages.watch = app[METRICS].watch
    if config.engine.urls:
        stages.engine_listener = app[METRICS].watch_engines()

    root_path = config.root_path.rstrip("/")
    tables = app[TABLES] = route_tables(config)
    named = mount(app, tables, root_path)
    app[ROUTE_NAMES] = sorted(f"{method} {path}" for table in tables for method, path, _ in table.routes)
    log = log_fields if config.log_format == "json" else log_line
    quiet = frozenset(config.disable_access_log_for_endpoints)
    app.middlewares.append(count_requests(app[METRICS], named, log if config.access_log else None, quiet))
    app.middlewares.append(shape_errors(hints(config), root_path))
    if config.web.allowed_origins:
        cors = Cors(config.web)
        app.middlewares.append(answer_preflights(cors))
        app.on_response_prepare.append(write_cors(cors))
    app.middlewares.append(identify_requests(config.limits.max_request_id_chars, config.enable_request_id_headers))
    if config.api_keys:
        open_paths = frozenset(spelled for spelled, path in named.items() if path in OPEN_PATHS)
        app.middlewares.append(require_key(KeyRing(config.api_keys), open_paths))
    if config.enable_request_id_headers:
        app.on_response_prepare.append(write_request_id)

    app.cleanup_ctx.append(worker_threads)
    mount_media(app, config, stages, POOL_NAME)
    app.cleanup_ctx.append(loaded_stages(load_in_background))
    if config.engine_backend is not None:
        app.cleanup_ctx.append(engine_loop)
        app.on_shutdown.append(end_streams)
    if config.mode is Mode.STANDARD and not config.scale_out:
        LOG.info(SWITCH_HINT)
    return app


async def worker_threads(app: web.Application) -> AsyncIterator[None]:
    app[POOL] = ThreadPoolExecutor(app[CONFIG].renderer_threads, thread_name_prefix=POOL_NAME)
    yield
    app[POOL].shutdown(wait=False, cancel_futures=True)


def loaded_stages(in_background: bool) -> Callable[[web.Application], AsyncIterator[None]]:
    """The model files and what the mode makes of them: tokenizer, templates, and the engine in modes that have one."""

    async def load(app: web.Application) -> None:
        await app[STAGES].open()
        # What is loaded stays: vocabularies of hundreds of thousands of objects need not be looked through again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        app[LIFECYCLE].open()
        app[STAGES].examine_format()
        app[STAGES].speed_up()

    async def stages(app: web.Application) -> AsyncIterator[None]:
        app[LOADING] = asyncio.create_task(load(app), name="load the model")
        if not in_background:
            await app[LOADING]
        yield

    return stages


async def engine_loop(app: web.Application) -> AsyncIterator[None]:
    """The engine, which `Stages.open` starts behind the model files, ends with the application."""
    yield
    await app[STAGES].close()


async def end_streams(app: web.Application) -> None:
    """Close the engine while the connections stand: what runs beyond the grace period ends as aborted, not as cut."""
    await app[STAGES].close()
    await app[RESPONSES].close()


# ---------------------------------------------------------------------------------------------- running


LAST_SECONDS = 2.0
"""After the grace period and the engine's end: how long answers have to leave the buffers."""


def run(config: ModeConfig) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code.

    The address is bound before anything is loaded, so that a taken port is known at once. /live answers from then on,
    and /ready is 503 until the model is loaded. The first signal refuses new work with 503 and lets running answers
    finish for `shutdown_timeout` seconds; a second one ends the process where it stands. With several workers this
    returns in each of them, too. Raises `ConfigError` where the server cannot start.
    """
    start_logging(config)
    if config.engine_backend in (None, "remote"):
        keep_torch_out()
        share_one_heap()
        sys.setswitchinterval(SWITCH_SECONDS)
    if config.log_level != "debug":
        logging.getLogger("aiohttp.server").addFilter(is_no_client_mistake)
    tls = open_tls(config.web)
    worker = None
    if config.workers > 1:
        role = fork_workers(config)
        if isinstance(role, int):
            return role
        worker, config = role, role.config
    listener = bind(config, shared=worker is not None)
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            if not runner.run(serve(config, listener, worker, tls)) or stuck_threads():
                # A model half loaded, a template without end: no thread can be stopped, and nobody waits for its result.
                end_at_once(config, 0)
    finally:
        listener.close()
        forget_socket(config)
    return 0


def stuck_threads() -> bool:
    """Whether a worker thread is still at it, a moment after its pool was closed; or a check that began with the start, which nobody
    waits for: the interpreter must not end while it is within a library.
    """
    for thread in threading.enumerate():
        if thread.name.startswith(POOL_NAME):
            thread.join(1)
    return any(thread.name.startswith((POOL_NAME, *CHECKS)) for thread in threading.enumerate())


def end_at_once(config: ModeConfig, code: int) -> NoReturn:
    forget_socket(config)
    logging.shutdown()
    os._exit(code)


def forget_socket(config: ModeConfig) -> None:
    if config.uds:
        Path(config.uds).unlink(missing_ok=True)


async def serve(
    config: ModeConfig,
    listener: socket.socket,
    worker: Worker | None = None,
    tls: ssl.SSLContext | None = None,
) -> bool:
    """Load, answer, and drain on a signal. Returns whether loading has ended."""
    stop = asyncio.Event()
    if worker is None:
        listen_for_signals(config, stop)
    else:
        listen_for_parent(worker, stop)
    if worker is None:
        app = make_app(config, load_in_background=True)
    else:
        app = make_app(config, metrics_folder=worker.metrics_folder, loaded=worker.loaded, seat=worker.seat)
    runner = web.AppRunner(app, shutdown_timeout=LAST_SECONDS)
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG, ssl_context=tls).start()
    beside = []
    if tls is not None and config.web.enable_ssl_refresh:
        beside.append(asyncio.create_task(keep_fresh(tls, config.web), name="look at the certificate"))
    stopped = asyncio.create_task(stop.wait(), name="wait for a signal")
    LOG.info(
        "%s mode on %s, loading %s", config.mode.value, url(listener, tls is not None), config.served_model_names[0]
    )
    loading = app[LOADING]
    try:
        began = time.perf_counter()
        await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            LOG.info("ready after %.1f s", time.perf_counter() - began)
            await stopped
        await drain(app[LIFECYCLE], config.shutdown_timeout)
    finally:
        loaded = loading.done()
        stopped.cancel()
        loading.cancel()
        for task in beside:
            task.cancel()
        await runner.cleanup()
    return loaded


async def drain(lifecycle: Lifecycle, grace: float) -> None:
    """Refuse new work and wait for what runs."""
    lifecycle.drain()
    LOG.info("shutting down: %d requests are running and have %g seconds", lifecycle.in_flight, grace)
    if not await lifecycle.wait_until_empty(grace):
        LOG.warning("shutting down: %d requests did not finish in time and are ended", lifecycle.in_flight)


def listen_for_signals(config: ModeConfig, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            LOG.warning("second signal: ending at once")
            end_at_once(config, 128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def listen_for_parent(worker: Worker, stop: asyncio.Event) -> None:
    """A worker ends when its parent says so, and when it has none any more."""
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(worker.parent)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(worker.parent, on_end)


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed and works; None is asyncio's own loop."""
    try:
        import uvloop

        uvloop.new_event_loop().close()
    except Exception as error:
        LOG.debug("asyncio's own event loop is used: %s", error)
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def is_no_client_mistake(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP get their 400; a traceback for each would let any port scanner fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
