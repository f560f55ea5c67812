"""Functions of many small operations without Python in between: TorchScript takes about half the time per operation, and leaves the
interpreter's lock to the event loop meanwhile. Where it is missing the same functions run as they stand.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

import torch
from torch.jit.frontend import FrontendError

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., object])


def scripted(function: F) -> F:
    """`function` of tensors, numbers and text, compiled to TorchScript's own instructions; itself if that cannot be done."""
    return cast("F", _script(function))


@cache
def _script(function: Callable[..., object]) -> Callable[..., object]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled: Callable[..., object] = torch.jit.script(function)
    # It reads source and annotations, of which an installation may have left anything out.
    except (FrontendError, RuntimeError, OSError, TypeError, AttributeError) as error:
        log.info("%s runs without TorchScript: %s", function.__name__, error)
        return function
    return compiled
