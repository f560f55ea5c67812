"""Several processes on one port, each with its share of the connections. The first one serves nothing: it keeps the others alive."""

from __future__ import annotations

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
from scaleout.listener import reserve, url

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
    ready: int | None
    """A file descriptor to write to when the model is loaded."""


def fork_workers(config: ModeConfig) -> Worker | int:
    """Fork `config.workers` processes and keep that many. Returns in each of them its `Worker`, and here, at the end, the exit code.

    The first worker loads alone: what cannot work is said once. A signal to the parent is passed on; a second one kills.
    Raises `ConfigError` when the port is taken.
    """
    with reserve(config) as reserved:
        config = evolve(config, port=reserved.getsockname()[1])
        LOG.info("%s mode on %s, %d workers", config.mode.value, url(reserved), config.workers)
        family = Family(config, Path(tempfile.mkdtemp(prefix="scaleout-metrics-")))
        role = family.keep()
    if isinstance(role, int):
        shutil.rmtree(family.metrics_folder, ignore_errors=True)
    return role


@define
class Family:
    """The parent's view: which worker is which process."""

    config: ModeConfig
    metrics_folder: Path
    indexes: dict[int, int] = field(factory=dict)
    """Index of a worker by its process id."""
    signals: int = 0
    code: int = 0
    lifeline: tuple[int, int] = field(factory=os.pipe)

    def keep(self) -> Worker | int:
        for number in SIGNALS:
            signal.signal(number, self.pass_on)
        ready, tell_ready = os.pipe()
        role = self.fork(0, tell_ready)
        if role is not None:
            os.close(ready)
            return role
        os.close(tell_ready)
        works = os.read(ready, 1) != b""
        os.close(ready)
        if works:
            for index in range(1, self.config.workers):
                role = role or self.fork(index)
        while role is None and self.indexes:
            role = self.await_death(replace=works)
        return self.code if role is None else role

    def fork(self, index: int, ready: int | None = None) -> Worker | None:
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
        return None if pid else Worker(self.config, index, self.metrics_folder, self.lifeline[0], ready)

    def await_death(self, replace: bool) -> Worker | None:
        """Wait for any worker's end. Unless it was meant to end, it is replaced."""
        pid, status = os.wait()
        index = self.indexes.pop(pid)
        for gauge in self.metrics_folder.glob(f"gauge_live*_{pid}.db"):
            # What a dead process had in hand is in nobody's hands now.
            gauge.unlink()
        code = os.waitstatus_to_exitcode(status)
        if self.signals or not replace:
            self.code = self.code or (code if code >= 0 else 0 if self.signals else 1)
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
