"""Has loops compiled by a program of its own while this one imports torch and reads weights: in one process all three would wait for the
same interpreter. Knows neither torch nor, unless there are loops to compile, numba.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from attrs import frozen

from scaleout.generate.options import EngineOptions, ModelSource, dtype_name

log = logging.getLogger(__name__)

KINDS = ("bfloat16", "float32")
"""Of numbers, for which there are loops."""

PROCESSES = 2

PATIENCE = 60.0
"""Seconds. Who has waited so long compiles in his own process, as where there can be no other."""

ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of these is there where torch may find a GPU: a driver's device."""


@frozen(eq=False)
class Compiler:
    """A program at work. `note`: what tells the next start that there is nothing left to compile."""

    note: Path
    process: Popen[bytes]

    def wait(self) -> None:
        try:
            failed = self.process.wait(PATIENCE)
        except TimeoutExpired:
            log.warning("Loops are not compiled after %d seconds; the engine does it itself", PATIENCE)
            self.stop()
            return
        if failed:
            log.info("Compiling loops ahead failed; the engine does it itself")
        else:
            with suppress(OSError):
                self.note.touch()

    def stop(self) -> None:
        with self.process:  # whose other process ends with its standard input
            self.process.kill()


_at_work: list[Compiler] = []


@contextmanager
def compiling_ahead(files: ModelSource, options: EngineOptions) -> Iterator[None]:
    """Until the end of the block at most. Does nothing where no loops will be needed, where numba has kept them, or could not keep them."""
    kind = pick_kind(files, options)
    compiler = None if kind is None else start(kind)
    if compiler is None:
        yield
        return
    _at_work.append(compiler)
    try:
        yield
    finally:
        _at_work.remove(compiler)
        compiler.stop()


def wait_for_compilers() -> None:
    """Until none compiles any more. What is missing then is compiled by whoever asks for it."""
    for compiler in list(_at_work):
        compiler.wait()


def pick_kind(files: ModelSource, options: EngineOptions) -> str | None:
    """Of the numbers that loops will run on. A guess: torch, which knows what devices there are, is not there yet."""
    if options.backend != "torch" or sys.platform != "linux":
        return None
    if options.device != "cpu" and (options.device != "auto" or any(map(os.path.exists, ACCELERATORS))):
        return None
    kind = dtype_name(options.dtype, files.config)
    return kind if kind in KINDS else None


def start(kind: str) -> Compiler | None:
    # A program with Python in it is no Python: what it does with our arguments, nobody knows.
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return None
    try:
        from scaleout.generate.compiled.kept import note_for

        note = note_for(kind)
    except (ImportError, OSError, AttributeError) as error:  # the engine says the same, when it opens its loops
        log.debug("No loops are compiled ahead: %s", error)
        return None
    if note is None or note.exists():
        return None
    log.info("Compiling loops for this processor, this once")
    processes = min(PROCESSES, len(os.sched_getaffinity(0)))
    command = [sys.executable, "-P", "-m", "scaleout.generate.compiled", kind, str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        return Compiler(note, Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, env=environment))
    except OSError as error:
        log.info("No process to compile loops in: %s", error)
        return None
