"""Threads and scratch memory for compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleout.generate.compiled.team import Team

ALONE = 1 << 14
"""Numbers. For fewer a second thread is not worth waking."""


def threads_for(numbers: int) -> int:
    return 1 if numbers < ALONE else torch.get_num_threads()


def grown(room: Tensor, count: int, team: Team) -> Tensor:
    """`room`, or a larger one of at least `count` floats. What waits for `team` may still use the one before."""
    if room.numel() >= count:
        return room
    team.hold(room)
    return torch.empty(count + count // 4)
