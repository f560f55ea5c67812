"""Whether an answer has begun to go round in circles: one pattern of ids, said again and again at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from attrs import define, field

MAX_PATTERN = 512
"""Ids of a pattern; each size up to the longest costs a comparison per token."""


@define
class Repetition:
    """`sizes` of patterns to look for; `count` of them in a row, or more, end the answer."""

    sizes: range
    count: int
    _last: deque[int] = field(init=False)
    _runs: dict[int, int] = field(factory=dict, init=False)
    """Per size, how many of the latest ids equal the one a pattern earlier."""

    def __attrs_post_init__(self) -> None:
        self._last = deque(maxlen=self.sizes.stop - 1)

    @classmethod
    def wanted(cls, spec: Mapping[str, int]) -> Repetition | None:
        """`spec` is `repetition_detection` of the wire; no largest size means off."""
        largest = spec.get("max_pattern_size", 0)
        if not largest:
            return None
        return cls(range(max(1, spec.get("min_pattern_size", 1)), largest + 1), spec.get("min_count", 2))

    def goes_on(self, token: int) -> bool:
        """Takes the next id; true when it completes the last repetition that is one too many."""
        for size in self.sizes:
            repeats = size <= len(self._last) and self._last[-size] == token
            self._runs[size] = self._runs.get(size, 0) + 1 if repeats else 0
        self._last.append(token)
        return any(run >= size * (self.count - 1) for size, run in self._runs.items())
