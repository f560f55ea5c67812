"""Counts of what happens deep in render and derender, for whoever reports them."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen


@define
class Tally:
    """A count that is reported to whoever listens by then."""

    listener: Callable[[int], None] | None = None

    def __call__(self, count: int) -> None:
        if self.listener is not None:
            self.listener(count)


@frozen
class Tallies:
    """`neutralised`: control tokens that a request's text spelled out. `repaired`: headers of a model that were slightly off."""

    neutralised: Tally = field(factory=Tally)
    repaired: Tally = field(factory=Tally)
