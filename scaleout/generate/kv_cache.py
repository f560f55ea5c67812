"""Which block of the KV cache belongs to whom. Knows block numbers and digests only; the tensors are the model runner's.

A full block is named by a digest of its own ids and everything before it, so equal prefixes find each other. A block that nobody
holds keeps its contents and its name until it is handed out again, oldest first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

Digest = bytes


def root_digest(salt: str) -> Digest:
    """The start of a digest chain. Requests share blocks only when they start from the same salt."""
    return blake2b(salt.encode(), digest_size=16).digest()


def next_digest(parent: Digest, token_ids: Sequence[int], names: bytes = b"") -> Digest:
    """Names a full block; `names` tells what its ids stand for, where ids alone do not. Cryptographic, so that nobody can craft ids that
    read another request's cache.
    """
    return blake2b(array("q", token_ids).tobytes() + names, digest_size=16, key=parent).digest()


class BlockPool:
    """`count` blocks of `block_size` tokens, each free or held by one or more sequences."""

    def __init__(self, count: int, block_size: int) -> None:
        self.block_size = block_size
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._holders = [0] * count
        self._digest_of: list[Digest | None] = [None] * count
        self._block_of: dict[Digest, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with reusable contents included."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def match(self, digests: Iterable[Digest]) -> list[int]:
        """The blocks of the longest known run of `digests`. Nobody holds them yet: see `hold`."""
        found: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free now, and would leave the free list if held."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """Adds one holder to each of `blocks`."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hands out `count` free blocks and forgets what they held. The caller has looked at `free`."""
        taken: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._holders[block] = 1
            self._forget(block)
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one holder from each of `blocks`. The last blocks of a sequence are reused before its first ones."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None
                if self._digest_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def name(self, block: int, digest: Digest) -> None:
        """Makes a full block findable. The first block of a name keeps it."""
        if digest not in self._block_of and self._digest_of[block] is None:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def _forget(self, block: int) -> None:
        digest = self._digest_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._digest_of[block] = None
