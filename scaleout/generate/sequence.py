"""One choice of one request on its way through the engine: its ids, its blocks, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from attrs import define, field, frozen

from scaleout.core import GenerateRequest, PositionLogprobs, PromptInfo, SamplingParams, TokenDelta, TokenLogprob
from scaleout.errors import RequestError
from scaleout.generate.kv_cache import Digest, next_digest, root_digest
from scaleout.generate.media import Media
from scaleout.generate.repetition import Repetition
from scaleout.generate.stream import Stream
from scaleout.generate.text_needs import NOTHING, TextNeeds

GREEDY_BELOW = 1e-5
"""A temperature under this means argmax."""

COOLEST = 0.01
"""Other temperatures are raised to this, below which the softmax overflows."""

UNTIL_THE_END = 1 << 62
"""A stream interval no answer reaches: deliver once, at the end."""


@frozen
class Sampled:
    """What the sampler says about one sequence: the next id, and its log probabilities where they were asked for."""

    token_id: int
    logprobs: PositionLogprobs | None = None
    failure: RequestError | None = None
    """The request cannot go on; nobody else is concerned."""


@define(eq=False)
class Sequence:
    """`tokens` is prompt and output; the KV of its first `computed` tokens lies in `blocks`."""

    request: GenerateRequest
    index: int
    arrival: int
    stream: Stream
    eos: frozenset[int]
    max_model_len: int
    seed: int
    salt: str
    interval: int = 1
    needs: TextNeeds = NOTHING
    media: Media | None = None
    followers: list[Sequence] = field(factory=list)
    """Choices of the same request that wait until this one has computed the prompt they share."""

    tokens: list[int] = field(init=False)
    prompt_len: int = field(init=False)
    blocks: list[int] = field(factory=list, init=False)
    digests: list[Digest] = field(factory=list, init=False)
    computed: int = field(default=0, init=False)
    named: int = field(default=0, init=False)
    """How many of `blocks` the pool can find by name."""
    counted: bool = field(default=False, init=False)
    cached: int | None = field(default=None, init=False)
    """Prompt tokens that the request found in the cache; the choices of one request tell the same number."""
    prompt_logprobs: list[dict[int, TokenLogprob] | None] | None = field(default=None, init=False)
    rules: list[Callable[..., None]] | None = field(default=None, init=False)
    """The sampler's own notes about this sequence; None until it was first sampled."""
    failure: RequestError | None = field(default=None, init=False)
    finish_reason: str | None = field(default=None, init=False)
    stop_reason: int | None = field(default=None, init=False)
    _repetition: Repetition | None = field(default=None, init=False)
    _sent: int = field(default=0, init=False)
    _unsent_logprobs: list[PositionLogprobs] = field(factory=list, init=False)
    _announced: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens = list(self.request.token_ids)
        self.prompt_len = len(self.tokens)
        if self.params.repetition_detection:
            self._repetition = Repetition.wanted(self.params.repetition_detection)
        if self.params.prompt_logprobs is not None and self.index == 0:
            self.prompt_logprobs = [None]

    @property
    def params(self) -> SamplingParams:
        return self.request.sampling_params

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def temperature(self) -> float:
        """0 for greedy."""
        wanted = self.params.temperature
        return 0.0 if wanted < GREEDY_BELOW else max(wanted, COOLEST)

    @property
    def stops(self) -> set[int]:
        """Every id that ends this choice once `min_tokens` are there."""
        return {*self.params.stop_token_ids, *(() if self.params.ignore_eos else self.eos)}

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some prompt position still lacks its log probabilities."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    def full_digests(self, tokens: int, block_size: int) -> list[Digest]:
        """Names of the full blocks within the first `tokens` tokens."""
        full = tokens // block_size
        while len(self.digests) < full:
            start = len(self.digests) * block_size
            parent = self.digests[-1] if self.digests else root_digest(self.salt)
            end = start + block_size
            names = self.media.names_within(start, end) if self.media is not None else b""
            self.digests.append(next_digest(parent, self.tokens[start:end], names))
        return self.digests[:full]

    def append(self, sampled: Sampled) -> None:
        """Takes the next id and decides whether it is the last one."""
        if sampled.failure is not None:
            self.failure = sampled.failure
            return
        token, params = sampled.token_id, self.params
        ends = not params.ignore_eos or self.needs.constraint is not None
        self.tokens.append(token)
        if sampled.logprobs is not None:
            self._unsent_logprobs.append(sampled.logprobs)
        if ends and token in self.eos and (self.generated >= params.min_tokens or self.needs.constraint is not None):
            self.finish("stop")
        elif self.generated >= params.min_tokens and token in params.stop_token_ids:
            self.finish("stop", token)
        elif self._repetition is not None and self._repetition.goes_on(token):
            self.finish("repetition")
        elif self.generated == params.max_tokens or len(self.tokens) >= self.max_model_len:
            self.finish("length")

    def finish(self, reason: str, stop_reason: int | None = None) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason

    def due(self) -> bool:
        """Whether there is something to deliver now: the first id, every `interval`-th one, and the end."""
        unsent = self.generated - self._sent
        first = self._sent == 0 and self.interval < UNTIL_THE_END
        return self.finish_reason is not None or (unsent > 0 and (first or unsent >= self.interval))

    def take_delta(self) -> TokenDelta:
        """Everything that was not delivered yet."""
        start = self.prompt_len + self._sent
        delta = TokenDelta(
            index=self.index,
            token_ids=list(islice(self.tokens, start, None)),
            logprobs=self._unsent_logprobs if self.params_ask_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            prompt=None if self._announced else self._prompt_info(),
        )
        self._sent, self._unsent_logprobs, self._announced = self.generated, [], True
        return delta

    @property
    def params_ask_logprobs(self) -> bool:
        return self.params.logprobs is not None or self.params.logprob_token_ids is not None

    def _prompt_info(self) -> PromptInfo:
        return PromptInfo(token_ids=self.request.token_ids, cached_tokens=self.cached, logprobs=self.prompt_logprobs)


def choice_order(sequence: Sequence) -> tuple[int, int]:
    """First come, first served; the choices of one request in order."""
    return sequence.arrival, sequence.index


def priority_order(sequence: Sequence) -> tuple[int, int, int]:
    """The lower the number the sooner; equal ones first come, first served."""
    return sequence.request.priority, sequence.arrival, sequence.index
