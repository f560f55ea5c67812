"""Who runs in the next step: continuous batching under a token budget. Knows ids and block numbers, no model."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from attrs import frozen

from scaleout.generate.kv_cache import BlockPool
from scaleout.generate.options import EngineStats
from scaleout.generate.sequence import Sampled, Sequence, choice_order, priority_order

PROMPT_LOGPROBS_CHUNK = 256
"""Tokens per step while prompt log probabilities are wanted: each needs a row of the whole vocabulary."""


@frozen
class Slice:
    """`count` tokens of a sequence to compute in one step, from `start` on. The last one decides the next id if nothing follows it."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)


class Scheduler:
    """Running sequences first, oldest first; then waiting ones in the same order while tokens, places and blocks last.

    A step mixes decoding (one token each) and chunks of prompts. When blocks run out the last in order is preempted: its blocks are
    freed and it is computed again later, with the ids it has.
    """

    def __init__(
        self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int, policy: str, stats: EngineStats
    ) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.order = priority_order if policy == "priority" else choice_order
        self.stats = stats
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=self.order)

    def schedule(self) -> list[Slice]:
        """The next step's work. Empty only when nothing runs or waits."""
        batch: list[Slice] = []
        budget = self.max_num_batched_tokens
        preempted = self.stats.preemptions
        while budget > 0 and len(batch) < len(self.running):
            # Victims are the last in `running`, never among those already in the batch.
            sequence = self.running[len(batch)]
            count = self._chunk(sequence, budget)
            if self._make_room(sequence, sequence.computed + count):
                batch.append(Slice(sequence, sequence.computed, count))
                budget -= count
        while (
            budget > 0
            and self.waiting
            and len(self.running) < self.max_num_seqs
            and self.stats.preemptions == preempted
        ):
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            count = self._chunk(sequence, budget)
            self._grow(sequence, sequence.computed + count)
            batch.append(Slice(sequence, sequence.computed, count))
            budget -= count
        return batch

    def advance(self, batch: Iterable[Slice], sampled: Iterable[Sampled]) -> list[Sequence]:
        """Takes a step's results: `sampled` has one entry per slice that `samples`. Returns the sequences that moved on."""
        results = iter(sampled)
        moved: list[Sequence] = []
        for work in batch:
            sequence, samples = work.sequence, work.samples
            sequence.computed += work.count
            self._name_full_blocks(sequence)
            if samples:
                sequence.append(next(results))
                moved.append(sequence)
                if sequence.failure is not None:
                    continue
                self.stats.generated_tokens += 1
                self._start_followers(sequence)
                if sequence.finish_reason is not None:
                    self.drop(sequence)
        return moved

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and frees its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._free(sequence)

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        if sequence.wants_prompt_logprobs:
            budget = min(budget, PROMPT_LOGPROBS_CHUNK)
        count = min(len(sequence.tokens) - sequence.computed, budget)
        return count if sequence.media is None else sequence.media.reach(sequence.computed, count)

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for `tokens` tokens, at the cost of those that come last. False if that is the sequence itself."""
        needed = self.pool.blocks_for(tokens) - len(sequence.blocks)
        while needed > self.pool.free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._grow(sequence, tokens)
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        sequence.blocks += self.pool.take(max(0, self.pool.blocks_for(tokens) - len(sequence.blocks)))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        self.add(sequence)
        self.stats.preemptions += 1

    def _admit(self, sequence: Sequence) -> bool:
        """Starts a waiting sequence if all of it fits now, on top of whatever prefix the cache has of it."""
        known = self._cached_prefix(sequence)
        needed = self.pool.blocks_for(len(sequence.tokens)) - len(known) + self.pool.unheld(known)
        if needed > self.pool.free:
            return False
        self.pool.hold(known)
        sequence.blocks = known
        sequence.computed = len(known) * self.pool.block_size
        if not sequence.counted:
            sequence.counted = True
            self.stats.prompt_tokens += sequence.prompt_len
            self.stats.cached_prompt_tokens += sequence.computed
            sequence.cached = sequence.computed if sequence.cached is None else sequence.cached
        self.waiting.pop(0)
        insort(self.running, sequence, key=self.order)
        return True

    def _cached_prefix(self, sequence: Sequence) -> list[int]:
        reads = not sequence.params.skip_reading_prefix_cache or sequence.index > 0
        if sequence.wants_prompt_logprobs or not reads:
            return []
        # The last token is always computed: its output decides the next id.
        return self.pool.match(sequence.full_digests(len(sequence.tokens) - 1, self.pool.block_size))

    def _name_full_blocks(self, sequence: Sequence) -> None:
        full = sequence.computed // self.pool.block_size
        if full > sequence.named:
            digests = sequence.full_digests(sequence.computed, self.pool.block_size)
            for position in range(sequence.named, full):
                self.pool.name(sequence.blocks[position], digests[position])
            sequence.named = full

    def _start_followers(self, leader: Sequence) -> None:
        followers, leader.followers = leader.followers, []
        for sequence in followers:
            sequence.cached, sequence.prompt_logprobs = leader.cached, leader.prompt_logprobs
            self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.named = [], 0, 0
