"""The OpenMP that torch computes with."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def find_openmp() -> ctypes.CDLL:
    """Where `GOMP_parallel(function, data, threads, flags)` is, the call that compilers make for a parallel section. Raises OSError or
    AttributeError where torch was built without OpenMP, or with one that keeps no such call.
    """
    # Looking in torch's library finds what it is linked to, whatever that is called and wherever it lies.
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library.GOMP_parallel.restype = None
    library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    return library
