"""A core for each of the threads that compute, where they have all cores."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

import torch

from scaleout.generate.openmp import find_openmp


def settle_threads() -> None:
    """For the calling thread, and for those that torch's OpenMP gives it to compute with. Does nothing where there are fewer of them than
    cores that may be used, or where it cannot be done.

    They wait for each other some hundred times per step, and actively: a thread that comes to share a core with one that waits has its
    turn only milliseconds later. With a core each, another program's work costs no more than the time it takes.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if torch.get_num_threads() != len(cores):
        return
    try:
        library = find_openmp()
        fork, number = library.GOMP_parallel, library.omp_get_thread_num
    except (OSError, AttributeError):  # another OpenMP, or none
        return

    def settle(_: int | None) -> None:
        with suppress(OSError, IndexError):
            os.sched_setaffinity(0, {cores[number()]})

    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(settle)
    fork(ctypes.cast(call, ctypes.c_void_p), None, len(cores), 0)
