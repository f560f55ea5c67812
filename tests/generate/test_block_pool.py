"""No block is lost, handed out twice, or found under a name it does not have."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaleout.generate.kv_cache import BlockPool, next_digest, root_digest


class PoolOfBlocks(RuleBasedStateMachine):
    """Holders take, share, name and release blocks in any order; a model beside them says who holds what."""

    @initialize(count=st.integers(1, 12))
    def start(self, count: int) -> None:
        self.pool = BlockPool(count, 4)
        self.holders: list[list[int]] = []
        self.contents: dict[int, bytes] = {}
        self.named: dict[bytes, int] = {}

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.pool.free))
        blocks = self.pool.take(count)
        assert len(set(blocks)) == count
        held = {block for holder in self.holders for block in holder}
        assert not held & set(blocks), "a held block was handed out again"
        for block in blocks:
            self.named.pop(self.contents.pop(block, b""), None)
        self.holders.append(blocks)

    @precondition(lambda self: any(self.holders))
    @rule(data=st.data(), digest=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def name(self, data: st.DataObject, digest: bytes) -> None:
        holder = data.draw(st.sampled_from([holder for holder in self.holders if holder]))
        block = data.draw(st.sampled_from(holder))
        self.pool.name(block, digest)
        if digest not in self.named and block not in self.contents:
            self.named[digest] = block
            self.contents[block] = digest

    @rule(digests=st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=4, unique=True))
    def share(self, digests: list[bytes]) -> None:
        found = self.pool.match(digests)
        assert [self.contents[block] for block in found] == digests[: len(found)]
        assert len(found) == len(digests) or digests[len(found)] not in self.named
        before = self.pool.free
        leaving = self.pool.unheld(found)
        self.pool.hold(found)
        assert self.pool.free == before - leaving
        self.holders.append(found)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(place))

    @invariant()
    def everything_is_somewhere(self) -> None:
        if hasattr(self, "pool"):
            held = {block for holder in self.holders for block in holder}
            assert self.pool.free == self.pool.count - len(held)


PoolOfBlocks.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestPoolOfBlocks = PoolOfBlocks.TestCase


def test_the_oldest_contents_go_first_and_the_end_of_a_sequence_before_its_start() -> None:
    pool = BlockPool(4, 4)
    first, second = pool.take(2), pool.take(2)
    for block, name in zip([*first, *second], (b"1", b"2", b"3", b"4"), strict=True):
        pool.name(block, name)
    pool.release(first)
    pool.release(second)
    pool.take(1)
    assert pool.match([b"1"]) == first[:1]
    assert pool.match([b"2"]) == []
    pool.take(1)
    assert pool.match([b"1"]) == []
    assert pool.match([b"3", b"4"]) == second


def test_names_depend_on_salt_and_on_everything_before() -> None:
    a, b = root_digest("a"), root_digest("b")
    assert next_digest(a, [1, 2]) == next_digest(a, [1, 2])
    names = {
        next_digest(a, [1, 2]),
        next_digest(b, [1, 2]),
        next_digest(next_digest(a, [1, 2]), [1, 2]),
        next_digest(a, [2, 1]),
    }
    assert len(names) == 4
