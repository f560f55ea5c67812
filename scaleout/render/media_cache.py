"""Items that were prepared before, by content, within a bound of bytes. Safe to use from several threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from attrs import define, field

from scaleout.render.modality import Processed

OVERHEAD = 512
"""Bytes that an entry costs beside its tensors, about."""


@define
class MediaCache:
    """Least recently used entries go first. An item larger than the whole bound is not kept. 0 keeps nothing."""

    max_bytes: int
    hits: int = 0
    misses: int = 0
    size: int = 0
    _items: OrderedDict[Hashable, Processed] = field(factory=OrderedDict)
    _lock: Lock = field(factory=Lock)

    def find(self, key: Hashable) -> Processed | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._items.move_to_end(key)
            return found

    def keep(self, key: Hashable, item: Processed) -> None:
        if item.size + OVERHEAD > self.max_bytes:
            return
        with self._lock:
            if (old := self._items.pop(key, None)) is not None:
                self.size -= old.size + OVERHEAD
            self._items[key] = item
            self.size += item.size + OVERHEAD
            while self.size > self.max_bytes:
                _, gone = self._items.popitem(last=False)
                self.size -= gone.size + OVERHEAD
