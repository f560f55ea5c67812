"""What an engine is told at start, what it promises about its bounds, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from attrs import define, field, frozen

from scaleout.errors import ConfigError


class ModelSource(Protocol):
    """The part of the tokenizer package's `ModelFiles` that an engine reads. No tokenizer file is among it."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path | None: ...
    @property
    def gguf(self) -> Path | None: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...


@frozen
class ThinkingMarkers:
    """Ids that open and close a model's thinking, for `thinking_token_budget`."""

    start: Sequence[int]
    end: Sequence[int]


@frozen
class RemoteOptions:
    """Servers that are used as engines, and how they are treated. Times are in seconds.

    `models`: an engine must serve one of these names; empty stands for the names that this server knows. `check`: refuse engines that
    differ from this server's model; without it they are only named in the log. `silence`: how long an engine may send nothing while
    it works on a request.
    """

    urls: Sequence[str]
    dialect: str = "auto"
    api_key: str | None = field(default=None, repr=False)
    models: Sequence[str] = ()
    check: bool = True
    connect_timeout: float = 5.0
    silence: float = 300.0
    health_interval: float = 1.0


@frozen
class EngineOptions:
    """How to run a model. None means "decide from the model and the machine".

    `kv_cache_memory` is in bytes; without it a GPU gives `gpu_memory_utilization` of its memory, a CPU a share of what is free.
    `max_queued` bounds the choices that wait for a place: beyond it a request is refused at once instead of growing the queue.
    `encoder_cache_memory`: bytes of embeddings of pictures and sounds that are kept for other requests.
    `max_logprobs` -1 lifts the cap. `seed` fixes the choice of seeds for requests that bring none.
    `thinking` is called at the first request whose answer depends on where thinking ends.
    """

    backend: str = "torch"
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_queued: int = 1024
    max_logprobs: int = 20
    block_size: int | None = None
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    stream_interval: int = 1
    seed: int | None = None
    thinking: Callable[[], ThinkingMarkers | None] | None = None
    encoder_cache_memory: int = 256 << 20
    engine_args: Mapping[str, Any] = field(factory=dict)
    remote: RemoteOptions | None = None


DTYPES = {"float32": "float32", "float": "float32", "float16": "float16", "half": "float16", "bfloat16": "bfloat16"}


def dtype_name(wanted: str, config: Mapping[str, Any]) -> str:
    """As torch calls it. `auto` is what the weights are stored in, and float32 where the model does not say."""
    if wanted == "auto":
        stored = config.get("dtype") or config.get("torch_dtype") or "float32"
        return DTYPES.get(str(stored).removeprefix("torch."), "float32")
    if wanted not in DTYPES:
        raise ConfigError(f"--dtype {wanted}: choose auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


@frozen
class EngineLimits:
    """Bounds that a request is checked against before it reaches the loop."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_logprobs: int = 20
    model: str = "This model"
    slot_ids: Mapping[str, int] = field(factory=dict)
    """Of each modality that the model takes: the id that stands where an embedding goes."""
    takes_media: bool = False
    """Whether the model takes features beside ids."""


@define
class EngineStats:
    """Gauges and counters for `/metrics`. Counters only grow; one engine thread writes, anybody reads."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    steps: int = 0
    failed_steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    encoder_cache_hits: int = 0
    encoder_cache_misses: int = 0
    encoder_cache_bytes: int = 0
    finished: dict[str, int] = field(factory=dict)
    """Choices that ended, by finish reason; `error` counts those that a failed step took along."""
