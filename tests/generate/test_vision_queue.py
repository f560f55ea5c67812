"""The parts behind pictures that need no model: the cache's bound, runs that are not cut, who waits for whom, and names of blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.errors import BadRequest
from scaleout.generate.encoder_cache import ENTRY, Encoded, EncoderCache
from scaleout.generate.encoding_queue import AHEAD, EncodingQueue
from scaleout.generate.kv_cache import BlockPool
from scaleout.generate.media import Item, Media
from scaleout.generate.options import EngineStats
from scaleout.generate.scheduler import Scheduler
from scaleout.generate.sequence import Sampled, Sequence
from scaleout.generate.stream import Stream


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 40)), max_size=60))
def test_the_cache_keeps_within_its_bound_and_finds_the_right_rows(work: list[tuple[int, int, int]]) -> None:
    cache = EncoderCache(3 * ENTRY + 800)
    sizes: dict[bytes, int] = {}
    for content, name, rows in work:
        key = bytes([content])
        found = cache.get(key)
        assert found is None or len(found.rows) == sizes[key]
        if found is None:
            sizes[key] = rows
            cache.put(("", str(name)), Encoded(key, torch.zeros(rows, 4), {}))
        named = cache.find(("", str(name)))
        assert named is None or named.key in sizes
        held = sum(cache.get(key).size for key in sizes if cache.get(key) is not None)  # type: ignore[union-attr]
        assert held <= cache.capacity


def test_a_name_stays_with_the_contents_that_had_it_first() -> None:
    cache = EncoderCache(100_000)
    for key in (b"a", b"b"):
        cache.put(("", "h"), Encoded(key, torch.zeros(1, 4), {}))
    assert cache.find(("", "h")).key == b"a"  # type: ignore[union-attr]
    assert cache.find(("salt", "h")) is None


@st.composite
def closed_runs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    runs, place = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = place + draw(st.integers(0, 6))
        place = start + draw(st.integers(1, 9))
        runs.append((start, place))
    return place + draw(st.integers(1, 6)), runs


@given(closed_runs(), st.integers(1, 12), st.data())
def test_closed_runs_are_never_cut_and_every_step_gets_on(
    prompt: tuple[int, list[tuple[int, int]]], budget: int, data: st.DataObject
) -> None:
    """Wherever a step begins, as after a prefix from the cache."""
    length, runs = prompt
    media = Media("", [], closed=runs)
    start = data.draw(st.integers(0, length - 1))
    while start < length:
        count = media.reach(start, min(budget, length - start))
        end = start + count
        assert 1 <= count <= length - start
        assert not any(first < end < last for first, last in runs)
        assert count <= budget or any(first <= start < last == end for first, last in runs)
        start = end


@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 24), st.integers(1, 9))
def test_blocks_are_named_after_the_items_that_touch_them(offset: int, length: int, start: int, size: int) -> None:
    def named(key: bytes, place: int) -> bytes:
        return Media("", [Item("image", "h", key, place, place + length, [], None)]).names_within(start, start + size)

    touches = offset < start + size and start < offset + length
    assert bool(named(b"a" * 16, offset)) == touches
    assert (named(b"a" * 16, offset) != named(b"b" * 16, offset)) == touches
    if touches:
        assert named(b"a" * 16, offset) != named(b"a" * 16, offset + 1)


@define
class Slow:
    """Eyes that note what they are asked to see; pictures called `bad` cannot be seen."""

    seen: list[str] = field(factory=list)
    remembered: set[bytes] = field(factory=set)
    forgotten: list[Media] = field(factory=list)

    def prepare(self, request: GenerateRequest) -> Media:
        raise NotImplementedError

    def known(self, media: Media, i: int) -> bool:
        if media.items[i].key in self.remembered:
            media.rows[i] = True
        return i in media.rows

    def encode(self, media: Media, i: int) -> None:
        if media.items[i].hash == "bad":
            raise BadRequest("bad")
        self.seen.append(media.items[i].hash)
        self.remembered.add(media.items[i].key)
        media.rows[i] = True

    def forget(self, media: Media) -> None:
        self.forgotten.append(media)

    def counts(self) -> dict[str, int]:
        return {}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(BlockPool(64, 4), max_num_seqs=4, max_num_batched_tokens=64, policy="fcfs", stats=EngineStats())


def sequence(loop: asyncio.AbstractEventLoop, arrival: int, *pictures: str) -> Sequence:
    request = GenerateRequest(f"r{arrival}", [1, 2, 3, 4], sampling_params=SamplingParams(max_tokens=40))
    items = [Item("image", name, name.encode(), i, i + 1, [(i, i + 1)], {}) for i, name in enumerate(pictures)]
    return Sequence(
        request=request,
        index=0,
        arrival=arrival,
        stream=Stream(loop, 1),
        eos=frozenset(),
        max_model_len=64,
        seed=0,
        salt="",
        media=Media("", items) if items else None,
    )


def test_one_picture_between_two_steps(loop: asyncio.AbstractEventLoop, scheduler: Scheduler) -> None:
    """Text goes past those who wait for pictures; known pictures cost no turn."""
    eyes = Slow()
    queue = EncodingQueue(eyes, scheduler)
    writer = sequence(loop, 1)
    for one in (writer, sequence(loop, 2, "a", "b", "c"), sequence(loop, 3, "c", "a", "d")):
        queue.add(one)
    seen = []
    for _ in range(6):
        assert queue.advance() is None
        batch = scheduler.schedule()
        assert writer in [work.sequence for work in batch]
        scheduler.advance(batch, [Sampled(9) for _ in batch])
        seen.append((list(eyes.seen), len(batch)))
    assert seen == [
        (["a"], 1),
        (["a", "b"], 1),
        (["a", "b", "c"], 2),
        (["a", "b", "c", "d"], 3),
        (["a", "b", "c", "d"], 3),
        (["a", "b", "c", "d"], 3),
    ]


def test_a_bad_picture_fails_alone(loop: asyncio.AbstractEventLoop, scheduler: Scheduler) -> None:
    queue = EncodingQueue(Slow(), scheduler)
    bad, good = sequence(loop, 1, "bad", "a"), sequence(loop, 2, "a")
    queue.add(bad)
    queue.add(good)
    failed = queue.advance()
    assert failed is not None
    assert failed[0] is bad
    assert queue.advance() is None
    assert scheduler.waiting == [good]
    assert not queue.waiting


def test_no_more_than_a_few_wait_with_embeddings(loop: asyncio.AbstractEventLoop, scheduler: Scheduler) -> None:
    eyes = Slow()
    queue = EncodingQueue(eyes, scheduler)
    for arrival in range(2 * AHEAD):
        queue.add(sequence(loop, arrival, f"picture {arrival}"))
    for _ in range(3 * AHEAD):
        queue.advance()
    assert len(scheduler.waiting) == AHEAD
    dropped = queue.waiting[0]
    queue.drop(dropped)
    assert dropped not in queue.waiting
    assert eyes.forgotten == [dropped.media]
