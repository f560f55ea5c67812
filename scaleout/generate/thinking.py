"""Whether a model is thinking, read from its ids one by one. Knows two markers and no text."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from scaleout.generate.options import ThinkingMarkers


@define
class ThinkingTrace:
    """`inside` after the start marker and until the end marker; `count` ids were thought since. Markers may be several ids."""

    markers: ThinkingMarkers
    inside: bool = False
    count: int = 0
    ended: bool = False
    _tail: tuple[int, ...] = ()

    @property
    def could_begin(self) -> bool:
        """Whether one id opens thinking that has not been there yet. Of a marker of several ids the first says nothing yet."""
        return not self.inside and not self.ended and len(self.markers.start) == 1

    def read(self, token_ids: Iterable[int]) -> None:
        longest = max(len(self.markers.start), len(self.markers.end))
        for token in token_ids:
            self._tail = (*self._tail, token)[-longest:]
            self.count += self.inside
            if self._says(self.markers.start):
                self.inside, self.count, self.ended = True, 0, False
            elif self._says(self.markers.end):
                self.inside, self.ended = False, True

    def _says(self, marker: Iterable[int]) -> bool:
        wanted = tuple(marker)
        return bool(wanted) and self._tail[-len(wanted) :] == wanted
