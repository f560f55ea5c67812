"""vLLM's asynchronous engine in this process: several GPUs and hosts by its own executors, behind our protocol.

It runs without a tokenizer unless `engine_args` says otherwise; ends of text therefore travel as stop ids and are told apart on the way
back. Everything that `--engine-args` holds is handed to it by its own names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from inspect import signature
from typing import Any
from uuid import uuid4

from attrs import asdict, define, field
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from scaleout.core import GenerateRequest, PositionLogprobs, PromptInfo, TokenDelta, TokenLogprob
from scaleout.errors import BadRequest, ConfigError, EngineFailed
from scaleout.generate.admission import check_request
from scaleout.generate.attendance import Attendance
from scaleout.generate.engine import Engine, Over
from scaleout.generate.options import EngineLimits, EngineOptions, EngineStats, ModelSource
from scaleout.generate.text_needs import LoadTokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

ABORTED_SECONDS = 5.0
"""For aborted requests to leave when the engine closes."""

TAKES = frozenset(signature(SamplingParams.from_optional).parameters) - {"stop", "include_stop_str_in_output"}
"""Fields that this version of vLLM knows, without stop strings: those are watched where there is text."""


def open_engine(files: ModelSource, options: EngineOptions, load_tokenizer: LoadTokenizer | None = None) -> Engine:
    model = files.gguf or (
        files.folder if files.folder is not None and any(files.folder.glob("*.safetensors")) else files.name
    )
    wanted = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_logprobs": options.max_logprobs,
        "block_size": options.block_size,
        "kv_cache_memory_bytes": options.kv_cache_memory,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enable_prefix_caching": options.enable_prefix_caching,
        "scheduling_policy": options.scheduling_policy,
        "seed": options.seed,
        "disable_log_stats": True,
        **{name.replace("-", "_"): value for name, value in options.engine_args.items()},
    }
    try:
        arguments = AsyncEngineArgs(**{name: value for name, value in wanted.items() if value is not None})
        core = AsyncLLM.from_engine_args(arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The vllm engine cannot start: {error}") from error
    config = core.vllm_config
    limits = EngineLimits(
        vocab_size=files.vocab_size,
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_logprobs=options.max_logprobs,
    )
    present: Attendance[str] = Attendance(limits.max_num_seqs + options.max_queued)
    return VllmEngine(core, limits, tuple(files.eos_token_ids), options, present)


@define(eq=False)
class VllmEngine:
    """Checks requests as every engine does: an id outside the vocabulary would end vLLM's own process."""

    _core: AsyncLLM
    limits: EngineLimits
    eos_token_ids: Sequence[int]
    _options: EngineOptions
    _present: Attendance[str]
    """Knows our requests by the ids under which vLLM knows them."""
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
        inner = uuid4().hex
        with self._present.enter(request, inner):
            try:
                async for delta in self._deltas(request, inner):
                    yield delta
                    if over is not None and delta.finish_reason is None and over(delta.index):
                        await self._core.abort(self._choice(inner, delta.index), internal=True)
            except EngineDeadError as error:
                raise EngineFailed("The engine is dead.", dead=True) from error
            except EngineGenerateError as error:
                raise EngineFailed("The engine failed while it worked on this request.") from error
            except ValueError as error:
                raise BadRequest(str(error)) from error

    async def abort(self, request_ids: Sequence[str]) -> None:
        if known := self._present.named(request_ids):
            await self._core.abort(known)

    def health(self) -> None:
        if self._closed or self._core.errored:
            raise EngineFailed("The engine is closed." if self._closed else "The engine is dead.", dead=True)

    def stats(self) -> EngineStats:
        self._stats.running = self._present.taken
        return self._stats

    async def close(self, grace: float = 0) -> None:
        await self._present.drain(grace)
        await self.abort(self._present.everybody())
        await self._present.drain(ABORTED_SECONDS)
        self._closed = True
        await asyncio.to_thread(self._core.shutdown)
        del self._core  # its own clean-up fails when the interpreter ends first

    async def _deltas(self, request: GenerateRequest, inner: str) -> AsyncIterator[TokenDelta]:
        params = sampling_params(request, self.eos_token_ids, self._options.stream_interval)
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.token_ids)}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        self._stats.prompt_tokens += len(request.token_ids)
        told: set[int] = set()
        prompt_logprobs = None
        outputs = self._core.generate(
            prompt, params, inner, priority=request.priority, reasoning_ended=request.reasoning_ended
        )
        async with aclosing(outputs):
            async for output in outputs:
                prompt_logprobs = prompt_logprobs or output.prompt_logprobs
                for choice in output.outputs:
                    first = choice.index not in told
                    if not (choice.token_ids or choice.finish_reason):
                        continue
                    told.add(choice.index)
                    info = PromptInfo(
                        request.token_ids, output.num_cached_tokens, read_prompt_logprobs(prompt_logprobs)
                    )
                    yield self._delta(choice, info if first else None, output, request.sampling_params.logprobs)

    def _choice(self, inner: str, index: int) -> list[str]:
        """vLLM's own name of one of several choices; none where it is over already."""
        names = self._core.output_processor.external_req_ids.get(inner, ())
        return [name for name in names if name.startswith(f"{index}_")]

    def _delta(self, choice: Any, prompt: PromptInfo | None, output: Any, count: int | None) -> TokenDelta:
        ids = list(choice.token_ids)
        self._stats.generated_tokens += len(ids)
        reason, stop = choice.finish_reason, choice.stop_reason
        if reason is not None:
            self._stats.finished[reason] = self._stats.finished.get(reason, 0) + 1
        return TokenDelta(
            index=choice.index,
            token_ids=ids,
            logprobs=None
            if choice.logprobs is None
            else [read_position(id, found, count) for id, found in zip(ids, choice.logprobs, strict=True)],
            finish_reason=reason,
            stop_reason=None if stop in self.eos_token_ids else stop,
            prompt=prompt,
            kv_transfer_params=output.kv_transfer_params if output.finished else None,
            ec_transfer_params=output.ec_transfer_params if output.finished else None,
        )


def sampling_params(request: GenerateRequest, eos: Sequence[int], interval: int) -> SamplingParams:
    """Ours in vLLM's own form. Raises ValueError for what it refuses."""
    ours = request.sampling_params
    given = {name: value for name, value in asdict(ours, recurse=False).items() if name in TAKES}
    ends = () if ours.ignore_eos else eos
    structured = {name: value for name, value in (ours.structured_outputs or {}).items() if not name.startswith("_")}
    whole = not request.stream and not ours.stop
    extra = dict(ours.extra_args or {})
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if getattr(request, name) is not None:
            extra[name] = getattr(request, name)
    given |= {
        "stop_token_ids": sorted({*ours.stop_token_ids, *ends}),
        "bad_words": list(ours.bad_words),
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY if whole else RequestOutputKind.DELTA,
        "stream_interval": ours.stream_interval or interval,
        "structured_outputs": StructuredOutputsParams(**structured) if structured else None,
        "repetition_detection": RepetitionDetectionParams(**ours.repetition_detection)
        if ours.repetition_detection
        else None,
        "extra_args": extra or None,
    }
    return SamplingParams.from_optional(**given)


def read_position(token_id: int, found: Mapping[int, Any], count: int | None) -> PositionLogprobs:
    """vLLM's map of one position: the sampled id first, then by rank, `count` entries or all of them (None, -1)."""
    top = [read_logprob(id, value) for id, value in found.items()]
    top.sort(key=lambda entry: (entry.token_id != token_id, entry.rank or 0))
    sampled = top[0] if top and top[0].token_id == token_id else TokenLogprob(token_id, LOWEST)
    return PositionLogprobs(sampled, top if count is None or count == -1 else top[: max(count, 1)])


def read_logprob(token_id: int, value: Any) -> TokenLogprob:
    finite = value.logprob == value.logprob and abs(value.logprob) != float("inf")
    return TokenLogprob(token_id, value.logprob if finite else LOWEST, value.rank or None)


def read_prompt_logprobs(found: Any) -> list[dict[int, TokenLogprob] | None] | None:
    if found is None:
        return None
    return [None if entry is None else {id: read_logprob(id, value) for id, value in entry.items()} for entry in found]
