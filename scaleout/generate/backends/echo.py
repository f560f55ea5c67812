"""No model at all: continues a prompt with the prompt's own ids, again and again. For tests and for measuring the other stages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from attrs import define, field

from scaleout.core import GenerateRequest, PositionLogprobs, PromptInfo, TokenDelta, TokenLogprob
from scaleout.errors import EngineFailed
from scaleout.generate.admission import check_request
from scaleout.generate.attendance import Attendance
from scaleout.generate.engine import Engine, Over
from scaleout.generate.options import EngineLimits, EngineOptions, EngineStats, ModelSource
from scaleout.generate.text_needs import LoadTokenizer

LOGPROB = -0.5
"""Of every sampled id; the r-th best other one has LOGPROB * r. Exact in binary, so that sums compare equal."""


def open_engine(files: ModelSource, options: EngineOptions, load_tokenizer: LoadTokenizer | None = None) -> Engine:
    limits = EngineLimits(
        vocab_size=files.vocab_size,
        max_model_len=options.max_model_len or files.max_model_len,
        max_num_seqs=options.max_num_seqs or 256,
        max_logprobs=options.max_logprobs,
        takes_media="vision_config" in files.config or "audio_config" in files.config,
    )
    ends = options.engine_args.get("eos_after_prompt", False)
    present: Attendance[_Echo] = Attendance(limits.max_num_seqs + options.max_queued)
    return EchoEngine(limits, tuple(files.eos_token_ids), present, options.stream_interval, ends)


@define(eq=False)
class EchoEngine:
    """Choice i starts at the prompt's i-th id. With `ends` it says the prompt once and then the first EOS id, if there is one.

    Every delta gives the event loop a turn, and none is made before the last was taken: a test finds any request in mid-flight without
    waiting for luck.
    """

    limits: EngineLimits
    eos_token_ids: Sequence[int]
    _present: Attendance[_Echo]
    interval: int = 1
    ends: bool = False
    _stats: EngineStats = field(factory=EngineStats)
    _closed: bool = False

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.limits.vocab_size

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        self.health()
        check_request(request, self.limits)
        echo = _Echo(request, self)
        with self._present.enter(request, echo):
            self._stats.prompt_tokens += len(request.token_ids)
            for delta in echo.deltas():
                self._stats.generated_tokens += len(delta.token_ids)
                if delta.finish_reason is not None:
                    self._stats.finished[delta.finish_reason] = self._stats.finished.get(delta.finish_reason, 0) + 1
                yield delta
                if over is not None and over(delta.index):
                    echo.over.add(delta.index)
                await asyncio.sleep(0)

    async def abort(self, request_ids: Sequence[str]) -> None:
        for echo in self._present.named(request_ids):
            echo.aborted = True

    def health(self) -> None:
        if self._closed:
            raise EngineFailed("The engine is closed.", dead=True)

    def stats(self) -> EngineStats:
        self._stats.running = self._present.taken
        return self._stats

    async def close(self, grace: float = 0) -> None:
        await self._present.drain(grace)
        await self.abort(self._present.everybody())
        self._closed = True


@define(eq=False)
class _Echo:
    """One request; its choices take turns."""

    request: GenerateRequest
    engine: EchoEngine
    aborted: bool = False
    over: set[int] = field(factory=set)

    def deltas(self) -> Iterator[TokenDelta]:
        turns = [self._choice(index) for index in range(self.request.sampling_params.n)]
        while turns:
            for turn in list(turns):
                delta = next(turn)
                yield delta
                if delta.finish_reason is not None:
                    turns.remove(turn)

    def _choice(self, index: int) -> Iterator[TokenDelta]:
        """Endless until an end is reached; at least one delta, the last with a finish reason."""
        params = self.request.sampling_params
        interval = params.stream_interval or self.engine.interval
        prompt: PromptInfo | None = PromptInfo(self.request.token_ids, 0, self._prompt_logprobs())
        held: list[int] = []
        said = 0
        while True:
            reason: str | None = "abort" if self.aborted or index in self.over else None
            stop: int | None = None
            if reason is None:
                held.append(self._next_id(index, said))
                said += 1
                reason, stop = self._end(held[-1], said)
            if reason is not None or prompt is not None or len(held) >= interval:
                logprobs = [self._logprobs(id) for id in held] if params.logprobs is not None else None
                yield TokenDelta(index, held, logprobs, reason, stop, prompt)
                held, prompt = [], None

    def _next_id(self, index: int, said: int) -> int:
        prompt, eos = self.request.token_ids, self.engine.eos_token_ids
        if self.engine.ends and eos and said >= len(prompt):
            return eos[0]
        return prompt[(index + said) % len(prompt)]

    def _end(self, token: int, said: int) -> tuple[str | None, int | None]:
        params = self.request.sampling_params
        if said >= params.min_tokens:
            if not params.ignore_eos and token in self.engine.eos_token_ids:
                return "stop", None
            if token in params.stop_token_ids:
                return "stop", token
        full = len(self.request.token_ids) + said >= self.engine.max_model_len
        return ("length", None) if said == params.max_tokens or full else (None, None)

    def _logprobs(self, token: int) -> PositionLogprobs:
        sampled = TokenLogprob(token, LOGPROB, 1)
        vocab = self.engine.vocab_size
        wanted = self.request.sampling_params.logprobs or 0
        others = range(1, vocab if wanted == -1 else wanted)
        return PositionLogprobs(
            sampled, [sampled, *(TokenLogprob((token + r) % vocab, LOGPROB * (r + 1), r + 1) for r in others)]
        )

    def _prompt_logprobs(self) -> list[dict[int, TokenLogprob] | None] | None:
        if self.request.sampling_params.prompt_logprobs is None:
            return None
        return [None, *({id: TokenLogprob(id, LOGPROB, 1)} for id in self.request.token_ids[1:])]
