"""What the model's vision tower made of pictures, by their contents, within a bound of bytes. Knows rows, no model and no request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from attrs import define, field, frozen
from torch import Tensor

from scaleout.core.features import Field

ENTRY = 512
"""Bytes that an entry costs beside its rows: many tiny items must not escape the bound."""


@frozen(eq=False)
class Encoded:
    """`rows` [slots, hidden]: what stands at an item's slots. `key` names its contents; `steering`: the fields that positions need."""

    key: bytes
    rows: Tensor
    steering: Mapping[str, Field]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.rows.nbytes + ENTRY


@define(eq=False)
class EncoderCache:
    """The most recently used entries that fit into `capacity` bytes. Any thread may call.

    An entry is found by its key, and by the name that a client gave it: (salt of the request, hash). Clients may lie about hashes, so a
    name stays with the contents that it was first used for while they are here, and keys are made of contents.
    """

    capacity: int
    hits: int = 0
    misses: int = 0
    _held: int = 0
    _entries: OrderedDict[bytes, Encoded] = field(factory=OrderedDict)
    _key_of: dict[tuple[str, str], bytes] = field(factory=dict)
    _names_of: dict[bytes, set[tuple[str, str]]] = field(factory=dict)
    _lock: Lock = field(factory=Lock)

    def get(self, key: bytes) -> Encoded | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._entries.move_to_end(key)
            return found

    def find(self, name: tuple[str, str]) -> Encoded | None:
        """By the client's own name for it."""
        with self._lock:
            key = self._key_of.get(name)
            if key is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return self._entries[key]

    @property
    def held(self) -> int:
        """Bytes."""
        return self._held

    def put(self, name: tuple[str, str], entry: Encoded) -> None:
        """Keeps it, at the cost of those that were not used for longest. One that is larger than the bound is not kept."""
        if entry.size > self.capacity:
            return
        with self._lock:
            if entry.key not in self._entries:
                self._entries[entry.key] = entry
                self._names_of[entry.key] = set()
                self._held += entry.size
            if name not in self._key_of:
                self._key_of[name] = entry.key
                self._names_of[entry.key].add(name)
                self._held += ENTRY
            while self._held > self.capacity:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, entry = self._entries.popitem(last=False)
        names = self._names_of.pop(key)
        self._held -= entry.size + ENTRY * len(names)
        for name in names:
            del self._key_of[name]
