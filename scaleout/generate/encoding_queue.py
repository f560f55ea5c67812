"""Requests whose pictures are still to be seen. One look between two steps, so that nobody who generates waits for more than one."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Protocol

from attrs import define, field

from scaleout.core import GenerateRequest
from scaleout.errors import RequestError
from scaleout.generate.media import Media
from scaleout.generate.scheduler import Scheduler
from scaleout.generate.sequence import Sequence

AHEAD = 8
"""Requests with pictures that wait for a place with all their embeddings. More would only hold memory."""


class Eyes(Protocol):
    """The device's side of pictures. `prepare` off the event loop, the others in the engine thread. All raise BadRequest."""

    def prepare(self, request: GenerateRequest) -> Media: ...

    def known(self, media: Media, i: int) -> bool: ...

    def encode(self, media: Media, i: int) -> None:
        """One look: item `i`, or as much of it as can be had by itself. `media.rows` has it when all of it was seen."""

    def forget(self, media: Media) -> None:
        """The request is gone: what was begun for it is not wanted any more."""

    def counts(self) -> Mapping[str, int]:
        """The part of `EngineStats` that tells of the encoder cache. From any thread."""


@define(eq=False)
class EncodingQueue:
    """In the scheduler's order. Whoever has all embeddings goes on to the scheduler."""

    eyes: Eyes | None
    scheduler: Scheduler
    waiting: list[Sequence] = field(factory=list)

    def add(self, sequence: Sequence) -> None:
        if sequence.media is None or sequence.media.missing() is None:
            self.scheduler.add(sequence)
        else:
            insort(self.waiting, sequence, key=self.scheduler.order)

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            assert self.eyes is not None
            assert sequence.media is not None
            self.eyes.forget(sequence.media)

    def advance(self) -> tuple[Sequence, RequestError] | None:
        """One look at most. Returns a request that failed by it, which the queue has then forgotten."""
        if not self.waiting or sum(one.media is not None for one in self.scheduler.waiting) >= AHEAD:
            return None
        sequence, eyes = self.waiting[0], self.eyes
        media = sequence.media
        assert media is not None
        assert eyes is not None
        try:
            while (i := media.missing()) is not None and eyes.known(media, i):
                pass
            if i is not None:
                eyes.encode(media, i)
        except RequestError as error:
            self.waiting.pop(0)
            return sequence, error
        if media.missing() is None:
            self.waiting.pop(0)
            self.scheduler.add(sequence)
        return None
