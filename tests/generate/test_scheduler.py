"""Whatever arrives, leaves and is aborted: budgets hold, everybody is served in order, and no block is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.generate.kv_cache import BlockPool
from scaleout.generate.options import EngineStats
from scaleout.generate.scheduler import Scheduler, Slice
from scaleout.generate.sequence import Sampled, Sequence

MAX_LEN = 24
BLOCK = 4


def scheduler_of(blocks: int, places: int = 4, tokens: int = 16, policy: str = "fcfs") -> Scheduler:
    return Scheduler(
        BlockPool(blocks, BLOCK), max_num_seqs=places, max_num_batched_tokens=tokens, policy=policy, stats=EngineStats()
    )


def sequence(
    arrival: int, prompt: list[int], index: int = 0, salt: str = "", priority: int = 0, **params: Any
) -> Sequence:
    request = GenerateRequest(str(arrival), prompt, sampling_params=SamplingParams(**params), priority=priority)
    stream: Any = None  # the scheduler delivers nothing
    return Sequence(request, index, arrival, stream, frozenset([2]), MAX_LEN, seed=0, salt=salt)


class Serving(RuleBasedStateMachine):
    """Requests come with shared prefixes, several choices and prompt log probabilities; steps sample; some are dropped midway."""

    @initialize(
        blocks=st.integers(MAX_LEN // BLOCK, 20),
        places=st.integers(1, 5),
        tokens=st.integers(1, 20),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def start(self, blocks: int, places: int, tokens: int, policy: str) -> None:
        self.scheduler = scheduler_of(blocks, places, tokens, policy)
        self.live: list[Sequence] = []
        self.arrivals = 0
        self.written: dict[int, tuple[int, ...]] = {}
        """What the device would hold: block → the ids written to it so far."""

    @rule(
        length=st.integers(1, MAX_LEN - 1),
        kind=st.integers(0, 2),
        n=st.integers(1, 3),
        max_tokens=st.integers(1, MAX_LEN),
        priority=st.integers(-1, 1),
    )
    def arrive(self, length: int, kind: int, n: int, max_tokens: int, priority: int) -> None:
        self.arrivals += 1
        prompt = [3 + kind] * length
        choices = [sequence(self.arrivals, prompt, i, priority=priority, n=n, max_tokens=max_tokens) for i in range(n)]
        choices[0].followers = choices[1:]
        self.scheduler.add(choices[0])
        self.live += choices

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A whole request goes, as when its client does."""
        gone = data.draw(st.sampled_from(self.live)).arrival
        for one in [one for one in self.live if one.arrival == gone]:
            self.scheduler.drop(one)
            self.live.remove(one)

    @precondition(lambda self: self.live)
    @rule(token=st.integers(2, 6))
    def step(self, token: int) -> None:
        ran = self.scheduler.running[:1]
        batch = self.scheduler.schedule()
        self.check(batch)
        assert not ran or batch[0].sequence is ran[0], "the first in order always moves on"
        for work in batch:
            self.write(work)
        moved = self.scheduler.advance(batch, [Sampled(token) for work in batch if work.samples])
        for one in moved:
            if one.finish_reason is not None:
                self.live.remove(one)

    def check(self, batch: list[Slice]) -> None:
        assert batch, "somebody waits, and nothing is done"
        scheduler = self.scheduler
        assert sum(work.count for work in batch) <= scheduler.max_num_batched_tokens
        assert len(scheduler.running) <= scheduler.max_num_seqs
        assert len({id(work.sequence) for work in batch}) == len(batch)
        for work in batch:
            assert work.count > 0
            assert work.start == work.sequence.computed
            assert len(work.sequence.blocks) * BLOCK >= work.start + work.count
        assert scheduler.running == sorted(scheduler.running, key=scheduler.order)

    def write(self, work: Slice) -> None:
        """Keeps the device's part of the bargain, and checks that what is reused is what it is taken for."""
        tokens = work.sequence.tokens
        for start in range(0, work.start, BLOCK):
            block = work.sequence.blocks[start // BLOCK]
            end = min(start + BLOCK, work.start)
            assert self.written[block][: end - start] == tuple(tokens[start:end])
        for place in range(work.start, work.start + work.count):
            block, offset = work.sequence.blocks[place // BLOCK], place % BLOCK
            self.written[block] = (*self.written.get(block, ())[:offset], tokens[place])

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        steps = 0
        while self.live:
            self.step(token=5)
            steps += 1
            assert steps < 20_000, "some request is never served"
        assert self.scheduler.pool.free == self.scheduler.pool.count
        assert not self.scheduler.running
        assert not self.scheduler.waiting


Serving.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestServing = Serving.TestCase


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8))
def test_priority_decides_who_is_first(priorities: list[int]) -> None:
    scheduler = scheduler_of(blocks=64, places=1, policy="priority")
    for arrival, priority in enumerate(priorities):
        scheduler.add(sequence(arrival, [5], priority=priority, max_tokens=1))
    served = []
    while scheduler.waiting or scheduler.running:
        batch = scheduler.schedule()
        served.append(batch[0].sequence.request.priority)
        scheduler.advance(batch, [Sampled(5)])
    assert served == sorted(priorities)


def test_decoding_goes_on_while_a_long_prompt_is_cut() -> None:
    scheduler = scheduler_of(blocks=64, tokens=8)
    scheduler.add(sequence(1, [5, 6], max_tokens=20))
    scheduler.advance(scheduler.schedule(), [Sampled(7)])
    scheduler.add(sequence(2, [5] * 20, max_tokens=2))
    counts = []
    for _ in range(3):
        batch = scheduler.schedule()
        counts.append([work.count for work in batch])
        scheduler.advance(batch, [Sampled(7) for work in batch if work.samples])
    assert counts == [[1, 7], [1, 7], [1, 6]]
