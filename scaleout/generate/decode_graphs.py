"""Decoding steps recorded once per batch size and replayed: the host then launches one graph instead of a thousand kernels."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from scaleout.generate.attention import Stretch
from scaleout.generate.flash_kernel import FlashKernel, FlashStep, to_device

log = logging.getLogger(__name__)


def buckets(most: int) -> list[int]:
    """1, 2, 4, 8, then every 8 up to 64, then every 32: padding costs little, and so does recording."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(96, most + 32, 32)]
    return [size for size in sizes if size < most] + [most]


@define(eq=False)
class DecodeGraphs:
    """`forward(ids, positions)` computes logits [rows, vocab] from [1, rows] tensors, through `kernel`.

    `most`: sequences of the largest step. `scratch`: a block nobody owns, where the rows of padding write. On a device without graphs
    every replay is computed afresh, which is slow and the same.
    """

    forward: Callable[[Tensor, Tensor], Tensor]
    kernel: FlashKernel
    most: int
    max_model_len: int
    scratch: int
    _sizes: list[int] = field(init=False)
    _steps: dict[int, _Recorded] = field(factory=dict, init=False)
    _pool: Any = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._sizes = buckets(self.most)

    def record(self) -> None:
        """All sizes, the largest first, so that they share its memory. Takes a second or so per size."""
        for size in reversed(self._sizes):
            self._steps[size] = self._record(size)
        log.info("Recorded decoding steps of %s sequences", ", ".join(map(str, self._sizes)))

    def run(self, ids: Sequence[int], stretches: Sequence[Stretch]) -> Tensor:
        """Logits [len(ids), vocab], valid until the next run. Every stretch has one token."""
        recorded = self._steps[self._sizes[bisect_left(self._sizes, len(ids))]]
        recorded.fill(ids, stretches, self.kernel.geometry.block_size, self.scratch)
        if recorded.graph is None:
            return self._compute(recorded)[: len(ids)]
        recorded.graph.replay()
        return recorded.logits[: len(ids)]

    def _record(self, size: int) -> _Recorded:
        geometry = self.kernel.geometry
        recorded = _Recorded.empty(
            size, -(-self.max_model_len // geometry.block_size), self.max_model_len, geometry.device
        )
        recorded.fill([], [], geometry.block_size, self.scratch)
        if geometry.device.type == "cuda":
            self._compute(recorded)  # libraries choose and load their kernels outside the recording
            torch.cuda.synchronize()
            recorded.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded.graph, pool=self._pool):
                recorded.logits = self._compute(recorded)
            self._pool = self._pool or recorded.graph.pool()
        return recorded

    def _compute(self, recorded: _Recorded) -> Tensor:
        self.kernel.step = recorded.step
        return self.forward(recorded.numbers[:1], recorded.numbers[1:2])


@define(eq=False)
class _Recorded:
    """The fixed places that a recorded step reads and writes. `numbers` int64 [3, size]: ids, positions and slots."""

    numbers: Tensor
    step: FlashStep
    logits: Tensor
    graph: Any = None

    @classmethod
    def empty(cls, size: int, width: int, longest: int, device: torch.device) -> _Recorded:
        numbers = torch.zeros(3, size, dtype=torch.int64, device=device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        lengths = torch.ones(size, dtype=torch.int32, device=device)
        tables = torch.zeros(size, width, dtype=torch.int32, device=device)
        return cls(numbers, FlashStep(numbers[2], starts, lengths, tables, 1, longest), torch.empty(0, device=device))

    def fill(self, ids: Sequence[int], stretches: Sequence[Stretch], block_size: int, scratch: int) -> None:
        """Copies from pinned memory that nobody waits for. Rows of padding decode token 0 of a sequence in the scratch block."""
        numbers = np.zeros(self.numbers.shape, dtype=np.int64)
        numbers[2] = scratch * block_size
        tables = np.full(self.step.tables.shape, scratch, dtype=np.int32)
        for row, (token, stretch) in enumerate(zip(ids, stretches, strict=True)):
            used = stretch.start // block_size + 1
            slot = stretch.blocks[used - 1] * block_size + stretch.start % block_size
            numbers[:, row] = token, stretch.start, slot
            tables[row, :used] = stretch.blocks[:used]
        device = self.numbers.device
        self.numbers.copy_(to_device(numbers, device), non_blocking=True)
        self.step.tables.copy_(to_device(tables, device), non_blocking=True)
        self.step.lengths.copy_(self.numbers[1] + 1)
