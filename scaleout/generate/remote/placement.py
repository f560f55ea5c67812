"""Which engine gets a prompt: one that has its beginning in the cache, unless that one is busier than its share."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

from attrs import define, field

BLOCK = 64
"""Tokens. Engines cache in blocks of 16 to 64; a finer grain would only cost."""
MOST_BLOCKS = 256
"""Of one prompt that are looked at: beyond 16,000 tokens two prompts with the same beginning are the same conversation."""
MOST_KNOWN = 1 << 17
"""Blocks whose engine is remembered, a few megabytes."""
LEVELS = (64, 8, 1)
"""Blocks after which a prompt's home is decided, where nothing is remembered: deep enough to tell conversations apart that begin alike."""
SLACK = 1.25
SPARE = 4
"""An engine gets a prompt for the sake of its cache up to so many times the mean load, and so many choices more: a few side by side
cost an engine little."""


@define
class Placement:
    """Remembers which engine has seen which beginning. Engines are places in `names`; `load` gives the choices that run on one."""

    names: Sequence[str]
    load: Callable[[int], int]
    _seen: OrderedDict[bytes, int] = field(factory=OrderedDict)

    def order(self, token_ids: Sequence[int], salt: str | None, engines: Sequence[int]) -> list[int]:
        """`engines`, best first. The prompt is remembered as the first one's."""
        if len(engines) == 1:
            return list(engines)
        blocks = chain(token_ids, salt)
        loads = {engine: self.load(engine) for engine in engines}
        ranked = sorted(engines, key=lambda engine: loads[engine])
        most = SLACK * sum(loads.values()) / len(engines) + SPARE
        preferred = self._preferred(blocks, engines)
        if preferred is not None and loads[preferred] <= most:
            ranked.remove(preferred)
            ranked.insert(0, preferred)
        self._remember(blocks, ranked[0])
        return ranked

    def _preferred(self, blocks: Sequence[bytes], engines: Sequence[int]) -> int | None:
        """Who has seen most of the prompt; else its home, on which all processes agree."""
        for block in reversed(blocks):
            found = self._seen.get(block)
            if found in engines:
                return found
        for level in LEVELS:
            if len(blocks) >= level:
                block = blocks[level - 1]
                return max(engines, key=lambda engine: weight(block, self.names[engine]))
        return None

    def _remember(self, blocks: Sequence[bytes], engine: int) -> None:
        for block in blocks:
            self._seen[block] = engine
            self._seen.move_to_end(block)
        while len(self._seen) > MOST_KNOWN:
            self._seen.popitem(last=False)


def chain(token_ids: Sequence[int], salt: str | None) -> list[bytes]:
    """For each whole block a digest of everything up to its end."""
    count = min(len(token_ids) // BLOCK, MOST_BLOCKS)
    if not count:
        return []
    data = memoryview(array("I", token_ids[: count * BLOCK])).cast("B")
    digest = blake2b((salt or "").encode(), digest_size=8)
    size = BLOCK * array("I").itemsize
    found = []
    for block in range(count):
        digest.update(data[block * size : (block + 1) * size])
        found.append(digest.digest())
    return found


def weight(block: bytes, name: str) -> bytes:
    """The engine with the highest weight is a block's home; when one leaves, only its own blocks move."""
    return blake2b(block + name.encode(), digest_size=8).digest()
