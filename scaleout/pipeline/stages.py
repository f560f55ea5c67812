"""The parts of one server: what knows text, and the engine. Opened and closed with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import frozen

from scaleout import parsers
from scaleout.config import Mode, ModeConfig
from scaleout.core import ChatRequest, CompletionRequest, GenerateRequest
from scaleout.derender import Derenderer
from scaleout.derender.bounds import DerenderBounds
from scaleout.errors import ConfigError, NotFound, NotSupported
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions
from scaleout.parsers import Format
from scaleout.render import Renderer, open_renderer
from scaleout.tokenizer import ModelFiles, Tokenizer, load_model_files, load_tokenizer


@frozen
class Front:
    """Everything that knows text. No GPU, no torch."""

    tokenizer: Tokenizer
    renderer: Renderer
    derenderer: Derenderer
    bounds: DerenderBounds
    max_model_len: int

    def render(self, request: ChatRequest | CompletionRequest, request_id: str) -> list[GenerateRequest]:
        """One GenerateRequest per prompt. Raises `BadRequest`."""
        if isinstance(request, ChatRequest):
            return [self.renderer.render_chat(request, request_id=request_id)]
        return self.renderer.render_completion(request, request_id=request_id)


class Stages:
    """`files` is set once `open` returned; `engine` is None where the mode has none."""

    def __init__(self, config: ModeConfig) -> None:
        self.config = config
        self.files: ModelFiles = ModelFiles(config.model)
        self.engine: Engine | None = None
        self._front: Front | None = None
        self._loading = asyncio.Lock()

    async def open(self) -> None:
        """Read the model's files, load what the mode needs at once. Raises `ConfigError`."""
        config = self.config
        self.files = await asyncio.to_thread(
            load_model_files,
            config.model,
            revision=config.revision,
            tokenizer=config.tokenizer,
            hf_token=config.hf_token,
        )
        if config.mode is not Mode.TOKENS_ONLY:
            await self.front()
        if config.engine_backend is not None:
            self.engine = await asyncio.to_thread(open_engine, self.files, engine_options(config), self._load_tokenizer)

    async def close(self) -> None:
        """Aborts what still runs; a second call does nothing."""
        engine, self.engine = self.engine, None
        if engine is not None:
            await engine.close()

    async def front(self) -> Front:
        """Tokenizer, renderer and derenderer, loaded on first use. Raises `NotSupported` for a model without a tokenizer."""
        if self._front is None:
            async with self._loading:
                if self._front is None:
                    self._front = await asyncio.to_thread(self._open_front)
        return self._front

    def ready_engine(self) -> Engine:
        """The engine. Raises `NotSupported` where the mode has none, `EngineFailed` when it died."""
        if self.engine is None:
            raise NotSupported("This server has no engine.")
        self.engine.health()
        return self.engine

    def served(self, name: str | None) -> str:
        """The name that answers echo. Raises `NotFound` for a model that this server does not serve."""
        names = self.config.served_model_names
        if not name:
            return names[0]
        if name in names or self.config.skip_model_name_validation:
            return name
        raise NotFound(f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}.", "model")

    def _open_front(self) -> Front:
        try:
            return open_front(self.config, self.files)
        except ConfigError as error:
            if self.config.mode is not Mode.TOKENS_ONLY:
                raise
            raise NotSupported(
                f"The model {self.config.served_model_names[0]!r} cannot be used for text here: {error}"
            ) from error

    def _load_tokenizer(self) -> Tokenizer:
        if self._front is not None:
            return self._front.tokenizer
        return load_tokenizer(self.files)


def open_front(config: ModeConfig, files: ModelFiles) -> Front:
    """Load tokenizer, template and output format. Raises `ConfigError` when they do not fit each other."""
    tokenizer = load_tokenizer(files)
    eos_ids: Sequence[int] = files.eos_token_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    chat_format = choose_format(config, files, tokenizer)
    derenderer = Derenderer(tokenizer, chat_format, eos_ids)
    max_model_len = config.max_model_len or files.max_model_len
    vocab_size = max(files.vocab_size, tokenizer.vocab_size)
    bounds = DerenderBounds(
        config.limits.max_derender_choices,
        config.limits.max_ids_per_choice or max_model_len,
        config.limits.max_logprobs,
        vocab_size,
    )
    renderer = open_renderer(config, files, tokenizer, derenderer.thought_is_over, chat_format)
    return Front(tokenizer, renderer, derenderer, bounds, max_model_len)


def choose_format(config: ModeConfig, files: ModelFiles, tokenizer: Tokenizer) -> Format | None:
    """The format that was asked for, else the one that template and vocabulary show; None is plain text."""
    try:
        if config.tool_call_parser or config.reasoning_parser:
            chosen = parsers.find_format(config.tool_call_parser, config.reasoning_parser)
        else:
            template = files.chat_template
            if isinstance(template, dict):
                template = template.get("tool_use") or template.get("default")
            chosen = parsers.detect_format(template, tokenizer.added_tokens.values())
        return None if chosen is None else parsers.bind(chosen, tokenizer.added_tokens.values())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def engine_options(config: ModeConfig) -> EngineOptions:
    """The engine's part of the configuration, in its own words."""
    given = config.engine
    return EngineOptions(
        backend=config.engine_backend or "torch",
        device=given.device,
        dtype=given.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_queued=config.limits.max_waiting_requests,
        max_logprobs=config.limits.max_logprobs,
        block_size=given.block_size,
        kv_cache_memory=given.kv_cache_memory_bytes,
        gpu_memory_utilization=given.gpu_memory_utilization,
        enable_prefix_caching=given.enable_prefix_caching,
        scheduling_policy=given.scheduling_policy,
        stream_interval=config.stream_interval,
        seed=given.seed,
        engine_args=given.args,
    )
