"""Where the items of a prompt stand, and what is known of them so far. Knows places and names, no tensors and no model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from scaleout.core import GenerateRequest
from scaleout.core.features import Field, MediaFeature
from scaleout.errors import BadRequest, NotSupported

Run = tuple[int, int]
"""Places from the first to before the second."""


@frozen(eq=False)
class Item:
    """One item of a prompt. `slots`: the places of its embeddings, ascending, as runs without gaps.

    `key` names its contents: what the client calls it and what it holds. `fields` None: the contents are in the cache.
    """

    modality: str
    hash: str
    key: bytes
    offset: int
    end: int
    runs: Sequence[Run]
    fields: Mapping[str, Field] | None

    @property
    def slots(self) -> int:
        return sum(end - start for start, end in self.runs)


@define(eq=False)
class Media:
    """The items of one request, for all its choices.

    `rows[i]`: the embeddings of item i once they are there; a request keeps them until it ends, so that it can be computed again at any
    time. `positions` int64 [3, tokens] of the prompt where the model wants more than a count, `delta`: how far later positions lie from
    the count. `closed`: runs whose tokens see each other, in whatever order; computed in one step.
    """

    salt: str
    items: Sequence[Item]
    positions: Any = None
    delta: int = 0
    closed: Sequence[Run] = ()
    rows: dict[int, Any] = field(factory=dict)
    begun: dict[int, Any] = field(factory=dict)
    """What the tower's side knows of items that it has seen a part of."""

    def missing(self) -> int | None:
        """The first item without its embeddings."""
        return next((i for i in range(len(self.items)) if i not in self.rows), None)

    def names_within(self, start: int, end: int) -> bytes:
        """What tells apart equal ids in these places: which items stand there, and which part of them."""
        named = b""
        for item in self.items:
            if item.offset < end and start < item.end:
                named += item.key + (item.offset - start).to_bytes(8, "little", signed=True)
        return named

    def reach(self, start: int, count: int) -> int:
        """How many tokens to compute from `start` on, rather than `count`: closed runs are not cut in two.

        More than `count` only where `start` itself is in a run.
        """
        end = start + count
        place = bisect_right(self.closed, end, key=lambda run: run[0]) - 1
        if place >= 0:
            first, last = self.closed[place]
            if first < end < last:
                return first - start if first > start else last - start
        return count

    def closed_within(self, start: int, end: int) -> list[Run]:
        return [run for run in self.closed if run[0] < end and start < run[1]]


def check_places(request: GenerateRequest, slot_ids: Mapping[str, int], model: str) -> None:
    """Raises BadRequest where an item is of an unknown kind or has no slot, or a slot no item; NotSupported for embeddings elsewhere."""
    ids = request.token_ids
    features = request.features.items if request.features else ()
    covered = 0
    for item in features:
        if item.modality not in slot_ids:
            takes = " and ".join(sorted(slot_ids)) if slot_ids else "text alone"
            raise BadRequest(f"{model} takes no {item.modality} features: this engine gives it {takes}.", "features")
        if not item.whole:
            raise NotSupported("This engine takes no embeddings from elsewhere (ec_transfer_params).", "features")
        if item.offset < covered or item.length < 1 or item.offset + item.length > len(ids):
            raise BadRequest(f"features: item {item.hash} stands outside of token_ids or on another item.", "features")
        covered = item.offset + item.length
    for slot in dict.fromkeys(slot_ids.values()):
        kinds = [modality for modality in slot_ids if slot_ids[modality] == slot]
        within = [(item.offset, item.offset + item.length) for item in features if item.modality in kinds]
        strays = ids.count(slot) - sum(ids[start:end].count(slot) for start, end in within)
        if strays:
            raise BadRequest(
                f"token_ids holds the placeholder {slot} of {kinds[0]} items {strays} times where features names no item.",
                "token_ids",
            )
    for item in features:
        if slot_ids[item.modality] not in ids[item.offset : item.offset + item.length]:
            raise BadRequest(f"features: item {item.hash} has no placeholder in its range.", "features")


def runs_of(ids: Sequence[int], feature: MediaFeature, slot: int) -> list[Run]:
    """The places of `slot` in an item's range."""
    runs: list[list[int]] = []
    for place in range(feature.offset, feature.offset + feature.length):
        if ids[place] != slot:
            continue
        if runs and runs[-1][1] == place:
            runs[-1][1] = place + 1
        else:
            runs.append([place, place + 1])
    return [(start, end) for start, end in runs]
