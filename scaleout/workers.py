"""Several processes on one port, each with its share of the connections. The first one serves nothing: it keeps the others alive."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType

from attrs import define, evolve, field, frozen

from scaleout.config import ModeConfig
from scaleout.generate.remote.board import Board, Seat
from scaleout.listener import reserve, url
from scaleout.pipeline.stages import LoadedText, Stages, load_text

LOG = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

RESTART_AFTER = 1.0
"""Seconds before a worker that died is replaced: one that dies at once must not keep the machine busy with forking."""


@frozen
class Worker:
    """What one forked process is to do."""

    config: ModeConfig
    index: int
    metrics_folder: Path
    parent: int
    """A file descriptor that comes to its end when the parent is gone."""
    loaded: LoadedText
    """What the parent has loaded; its memory is shared until somebody writes to it, and nobody does."""
    seat: Seat | None = None
    """Where it tells the others about engines elsewhere."""


def fork_workers(config: ModeConfig) -> Worker | int:
    """Fork `config.workers` processes and keep that many. Returns in each of them its `Worker`, and here, at the end, the exit code.

    The parent loads, once for all. A signal to it is passed on; a second one kills. Raises `ConfigError` when the port is taken or
    the model cannot be loaded.
    """
    with reserve(config) as reserved:
        config = evolve(config, port=reserved.getsockname()[1])
        LOG.info(
            "%s mode on %s, %d workers",
            config.mode.value,
            url(reserved, config.web.ssl_certfile is not None),
            config.workers,
        )
        loaded = load_text(config)
        board = None
        if config.engine.urls:
            # Here, since a worker that refuses to start would only be started again.
            asyncio.run(meet_engines(config, loaded))
            board = Board(len(config.engine.urls), config.workers)
        gc.collect()
        # Pages of frozen objects stay shared: no collector writes to them.
        gc.freeze()
        family = Family(config, Path(tempfile.mkdtemp(prefix="scaleout-metrics-")), loaded, board)
        role = family.keep()
    if isinstance(role, int):
        shutil.rmtree(family.metrics_folder, ignore_errors=True)
    return role


async def meet_engines(config: ModeConfig, loaded: LoadedText) -> None:
    """Ask every engine elsewhere once. Raises `ConfigError` naming those that differ from the model that was loaded."""
    stages = Stages(config, loaded)
    try:
        await stages.open()
    finally:
        await stages.close()


@define
class Family:
    """The parent's view: which worker is which process."""

    config: ModeConfig
    metrics_folder: Path
    loaded: LoadedText
    board: Board | None = None
    indexes: dict[int, int] = field(factory=dict)
    """Index of a worker by its process id."""
    signals: int = 0
    code: int = 0
    lifeline: tuple[int, int] = field(factory=os.pipe)

    def keep(self) -> Worker | int:
        for number in SIGNALS:
            signal.signal(number, self.pass_on)
        role = None
        for index in range(self.config.workers):
            role = role or self.fork(index)
        while role is None and self.indexes:
            role = self.await_death()
        return self.code if role is None else role

    def fork(self, index: int) -> Worker | None:
        """Start one worker. Returns None here, and there what it is to do."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            self.indexes[pid] = index
        else:
            # Ctrl-C reaches the whole group of processes, and the parent passes it on besides.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(self.lifeline[1])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if pid:
            return None
        seat = None if self.board is None else Seat(self.board, index)
        return Worker(self.config, index, self.metrics_folder, self.lifeline[0], self.loaded, seat)

    def await_death(self) -> Worker | None:
        """Wait for any worker's end. Unless it was meant to end, it is replaced."""
        pid, status = os.wait()
        index = self.indexes.pop(pid)
        for gauge in self.metrics_folder.glob(f"gauge_live*_{pid}.db"):
            # What a dead process had in hand is in nobody's hands now.
            gauge.unlink()
        code = os.waitstatus_to_exitcode(status)
        if self.signals:
            self.code = self.code or max(code, 0)
            return None
        LOG.error("worker %d ended with %d and is replaced", index, code)
        time.sleep(RESTART_AFTER)
        return None if self.signals else self.fork(index)

    def pass_on(self, number: int, _: FrameType | None) -> None:
        self.signals += 1
        if self.signals > 1:
            self.code = 128 + number
        for pid in self.indexes:
            os.kill(pid, signal.SIGTERM if self.signals == 1 else signal.SIGKILL)
