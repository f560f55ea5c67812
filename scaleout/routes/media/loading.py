"""Work on a request that may name media: done at once where it names none, else behind the fetching and in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from aiohttp import web
from attrs import frozen
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from scaleout.config import ModeConfig
from scaleout.core import GenerateRequest
from scaleout.core.media import MediaSet, MediaWanted
from scaleout.pipeline import Stages
from scaleout.routes.keys import METRICS, STAGES
from scaleout.routes.media.fetch import MediaFetcher
from scaleout.routes.work import QUICK_PROMPT, run

T = TypeVar("T")

THREADS = 2
"""Decoding is the work of one core for some tens of milliseconds a picture; text must not wait for a queue of them."""


@frozen
class MediaDesk:
    fetcher: MediaFetcher
    threads: ThreadPoolExecutor


DESK: web.AppKey[MediaDesk] = web.AppKey("media", MediaDesk)


async def with_media(request: web.Request, work: Callable[[MediaSet | None], T], beyond: int = 0) -> T:
    """`work(None)`; where that finds out that media are wanted, they are fetched, and the work is done again with them.

    `beyond`: bytes to work on that are not in the body.
    """
    length = request.content_length
    try:
        size = length + beyond if length is not None and beyond else None
        return await run(request, partial(work, None), size, QUICK_PROMPT)
    except MediaWanted as wanted:
        refs = wanted.refs
    desk = request.app[DESK]
    async with desk.fetcher.fetched(refs) as media:
        return await asyncio.get_running_loop().run_in_executor(desk.threads, partial(work, media))


async def resolve_media(request: web.Request, wanted: GenerateRequest) -> GenerateRequest:
    """A token request with tensors in place of media that it names (`content_parts`) or brings as files.

    Raises `BadRequest`, and `NotSupported` where the server has no tokenizer to place them with.
    """
    features = wanted.features
    if features is None and not wanted.content_parts:
        return wanted
    brought = features is not None and any(item.source is not None and item.fields is None for item in features.items)
    if features is not None and not brought and request.app[STAGES].config.engine_backend != "torch":
        return wanted
    front = await request.app[STAGES].front()
    refs = front.content_refs(wanted)
    desk = request.app[DESK]
    async with desk.fetcher.fetched(refs) as media:
        work = partial(front.with_features, wanted, refs, media)
        return await asyncio.get_running_loop().run_in_executor(desk.threads, work)


def mount_media(app: web.Application, config: ModeConfig, stages: Stages, thread_name: str) -> None:
    """Have the application fetch media, and count what it does."""

    async def desk(app: web.Application) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"{thread_name}-media")
        app[DESK] = MediaDesk(MediaFetcher(config.media), threads)
        yield
        threads.shutdown(wait=False, cancel_futures=True)
        await app[DESK].fetcher.close()

    app.cleanup_ctx.append(desk)
    app[METRICS].tell(_MediaMetrics(app, stages))


class _MediaMetrics(Collector):
    """Fetched media and the cache of prepared ones, read when somebody asks."""

    def __init__(self, app: web.Application, stages: Stages) -> None:
        self._app = app
        self._stages = stages

    def collect(self) -> Iterable[Metric]:
        fetcher = self._app[DESK].fetcher if DESK in self._app else None
        if fetcher is not None:
            text = "Bytes of media fetched for requests."
            yield CounterMetricFamily("scaleout_media_fetched_bytes", text, fetcher.fetched_bytes)
            text = "Media that were not fetched: refused, missing, too large or too slow."
            yield CounterMetricFamily("scaleout_media_refused", text, fetcher.refused)
        multimodal = self._stages.multimodal
        if multimodal is not None:
            cache = multimodal.cache
            yield CounterMetricFamily("scaleout_media_cache_hits", "Prepared media found in the cache.", cache.hits)
            yield CounterMetricFamily("scaleout_media_cache_misses", "Media that had to be prepared.", cache.misses)
            yield GaugeMetricFamily("scaleout_media_cache_bytes", "Bytes of prepared media in the cache.", cache.size)
