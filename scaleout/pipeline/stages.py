"""The parts of one server: what knows text, and the engine. Opened and closed with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal, cast

from attrs import evolve, frozen

from scaleout import codec, parsers
from scaleout.config import Mode, ModeConfig
from scaleout.core import ChatRequest, CompletionRequest, GenerateRequest, Json, Message
from scaleout.core.media import MediaRef, MediaSet
from scaleout.derender import Derenderer
from scaleout.derender.bounds import DerenderBounds
from scaleout.errors import BadRequest, ConfigError, NotFound, NotSupported
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions, ThinkingMarkers
from scaleout.parsers import Format
from scaleout.pipeline.demands import demand_calls, thinking_markers
from scaleout.pipeline.engines_elsewhere import remote_options
from scaleout.pipeline.media import open_multimodal
from scaleout.pipeline.self_test import Finding, examine_format
from scaleout.pipeline.tallies import Tallies
from scaleout.render import ModelFacts, OutputFacts, Renderer, RenderSettings, SamplingDefaults
from scaleout.render.multimodal import Multimodal
from scaleout.render.template_set import named_template
from scaleout.tokenizer import ModelFiles, Tokenizer, load_model_files, load_tokenizer
from scaleout.tokenizer.fast import require_fast, speed_up

if TYPE_CHECKING:
    from scaleout.generate.backends.remote import RemoteEngine
    from scaleout.generate.remote.board import Seat
    from scaleout.generate.remote.fleet import Listener

CHECKS = ("check encoder", "examine format")
"""Threads that look at something beside the serving, once after a start."""


@frozen
class Front:
    """Everything that knows text. No GPU, no torch."""

    tokenizer: Tokenizer
    renderer: Renderer
    derenderer: Derenderer
    bounds: DerenderBounds
    max_model_len: int
    tallies: Tallies
    finishes: bool = False
    """Whether features are brought into the form of the model's own code before they reach the engine."""

    def sample_texts(self) -> list[str]:
        """What the model's own template makes of a small conversation: texts to try an encoder on."""
        turns = [
            Message("user", "What's 2 + 2?\n"),
            Message("assistant", " It is **4**. 🙂"),
            Message("user", "naïve  日本"),
        ]
        try:
            return [self.renderer.render_prompt(ChatRequest(turns)).text]
        except BadRequest:
            return []

    def render(
        self, request: ChatRequest | CompletionRequest, request_id: str, media: MediaSet | None = None
    ) -> list[GenerateRequest]:
        """One GenerateRequest per prompt. Raises `BadRequest`; `MediaWanted` where media are named and `media` is None."""
        if isinstance(request, ChatRequest):
            rendered = [self.renderer.render_chat(request, request_id=request_id, media=media)]
        else:
            rendered = self.renderer.render_completion(request, request_id=request_id)
        demand = rendered[0].sampling_params.structured_outputs
        if demand is not None:
            # Loaded by the first such request: most servers never see one.
            from scaleout.generate.constraint import check_demand

            check_demand(demand, {text: i for i, text in self.tokenizer.added_tokens.items()})
        return rendered

    def content_refs(self, request: GenerateRequest) -> list[MediaRef]:
        """What a token request names in `content_parts`. Raises `BadRequest`."""
        return self.renderer.content_refs(request)

    def with_features(self, request: GenerateRequest, refs: Sequence[MediaRef], media: MediaSet) -> GenerateRequest:
        """A token request whose media are tensors. Raises `BadRequest`."""
        return self.for_engine(self.renderer.with_features(request, refs, media))

    def for_engine(self, request: GenerateRequest) -> GenerateRequest:
        """The request as the engine of this process takes it."""
        return self.renderer.finish(request) if self.finishes else request


@frozen
class LoadedText:
    """What can be loaded before anything runs, and shared by forked processes. `front` is None where text comes later, if at all."""

    files: ModelFiles
    front: Front | None


class Stages:
    """`files` is set once `open` returned; `engine` is None where the mode has none."""

    def __init__(self, config: ModeConfig, loaded: LoadedText | None = None, seat: Seat | None = None) -> None:
        """`loaded` and `seat` come from a parent process: it has met the engines elsewhere, and refused those that differ."""
        self.config = config
        self.files: ModelFiles = ModelFiles(config.model)
        self.engine: Engine | None = None
        self.findings: Sequence[Finding] = ()
        """What the self-test of the output format found; empty before it ran and where there is none."""
        self.watch: Callable[[Tallies], None] | None = None
        """Told what is counted, once there is something that counts."""
        self.engine_listener: Listener | None = None
        """Told what happens to engines elsewhere."""
        self._loaded = loaded
        self._seat = seat
        self._front: Front | None = None
        self._loading = asyncio.Lock()
        self._remote: RemoteEngine | None = None

    async def open(self) -> None:
        """Read the model's files, load what the mode needs at once. Raises `ConfigError`."""
        loaded = self._loaded
        if loaded is None:
            loaded = await asyncio.to_thread(load_text, self.config)
        self.files = loaded.files
        if loaded.front is not None:
            self._adopt(loaded.front)
        if self.config.engine_backend is not None:
            options = evolve(engine_options(self.config), thinking=self._thinking_markers)
            engine = await asyncio.to_thread(open_engine, self.files, options, self._load_tokenizer)
            if self.config.engine_backend == "remote":
                self._remote = remote = cast("RemoteEngine", engine)
                remote.seat, remote.listener = self._seat, self.engine_listener
                await remote.connect(strict=self._seat is None)
            self.engine = engine

    def _adopt(self, front: Front) -> None:
        if self.watch is not None:
            self.watch(front.tallies)
        self._front = front

    def speed_up(self) -> None:
        """Beside the serving: check the fast encoder, and switch to it where it makes no difference."""
        if self._front is not None and self.config.tokenizer_backend == "auto":
            front = self._front
            Thread(target=lambda: speed_up(front.tokenizer, front.sample_texts()), name=CHECKS[0], daemon=True).start()

    @property
    def encodes_fast(self) -> bool:
        """Whether prompts are encoded by the fast encoder by now."""
        return self._front is not None and self._front.tokenizer.backend == "fast"

    def examine_format(self) -> None:
        """Beside the serving: see whether the output format reads what the model's template writes."""
        front = self._front
        if front is not None:

            def examine() -> None:
                self.findings = examine_format(front)

            Thread(target=examine, name=CHECKS[1], daemon=True).start()

    @property
    def output_format(self) -> str | None:
        """Name of the output format; None where there is none, or nothing is loaded yet."""
        chosen = None if self._front is None else self._front.derenderer.format
        return None if chosen is None else chosen.name

    def tokenizer_facts(self) -> Json:
        """What another server needs to know to see that it has the same tokenizer; None before one is loaded."""
        if self._front is None:
            return None
        tokenizer = self._front.tokenizer
        return {
            "fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "special_ids": sorted(tokenizer.special_ids),
        }

    async def close(self) -> None:
        """Aborts what still runs; a second call does nothing."""
        engine, self.engine = self.engine, None
        if engine is not None:
            await engine.close()

    @property
    def multimodal(self) -> Multimodal | None:
        """The model's way with media; None for a text model, and before text is loaded."""
        return None if self._front is None else self._front.renderer.multimodal

    async def front(self) -> Front:
        """Tokenizer, renderer and derenderer, loaded on first use. Raises `NotSupported` for a model without a tokenizer."""
        if self._front is None:
            async with self._loading:
                if self._front is None:
                    self._adopt(await asyncio.to_thread(self._open_front))
                    self.examine_format()
                    self.speed_up()
        assert self._front is not None
        return self._front

    def ready_engine(self) -> Engine:
        """The engine. Raises `NotSupported` where the mode has none, `EngineFailed` when it died."""
        if self.engine is None:
            raise NotSupported("This server has no engine.")
        self.engine.health()
        return self.engine

    def remote_engine(self) -> RemoteEngine:
        """The engines elsewhere. Raises `NotSupported` where there are none."""
        if self._remote is None:
            raise NotSupported("This server has no engines elsewhere: see --engine-url.")
        return self._remote

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

    def _thinking_markers(self) -> ThinkingMarkers | None:
        """Asked by the engine, at the first request whose answer depends on where a thought ends."""
        if self._front is not None:
            return thinking_markers(self._front.derenderer.format, self._front.tokenizer)
        try:
            tokenizer = self._load_tokenizer()
            return thinking_markers(choose_format(self.config, self.files, tokenizer), tokenizer)
        except ConfigError:
            # A model without text. Nothing says where its thoughts end, and the engine tells that to clients who need to know.
            return None

    def _load_tokenizer(self) -> Tokenizer:
        if self._front is not None:
            return self._front.tokenizer
        return load_tokenizer(self.files)


def load_text(config: ModeConfig) -> LoadedText:
    """Read the model's files; load what knows text in modes that always need it. Raises `ConfigError`."""
    files = load_model_files(
        config.model, revision=config.revision, tokenizer=config.tokenizer, hf_token=config.hf_token
    )
    return LoadedText(files, None if config.mode is Mode.TOKENS_ONLY else open_front(config, files))


def open_front(config: ModeConfig, files: ModelFiles) -> Front:
    """Load tokenizer, template and output format. Raises `ConfigError` when they do not fit each other."""
    tokenizer = load_tokenizer(files)
    eos_ids: Sequence[int] = files.eos_token_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    chat_format = choose_format(config, files, tokenizer)
    tallies = Tallies()
    derenderer = Derenderer(
        tokenizer,
        chat_format,
        eos_ids,
        names_ids=config.return_tokens_as_token_ids,
        on_repaired=tallies.repaired,
    )
    max_model_len = config.max_model_len or files.max_model_len
    vocab_size = max(files.vocab_size, tokenizer.vocab_size)
    bounds = DerenderBounds(
        config.limits.max_derender_choices,
        config.limits.max_ids_per_choice or max_model_len,
        config.limits.max_logprobs,
        vocab_size,
    )
    model = ModelFacts(
        config.served_model_names[0], max_model_len, vocab_size, files.chat_template, eos_token_ids=tuple(eos_ids)
    )
    renderer = Renderer(
        tokenizer,
        model,
        defaults=sampling_defaults(config, files),
        limits=config.limits,
        settings=render_settings(config, files),
        output=output_facts(derenderer),
        on_neutralised=tallies.neutralised,
        multimodal=open_multimodal(config, files, tokenizer),
    )
    finishes = config.engine_backend == "torch"
    front = Front(tokenizer, renderer, derenderer, bounds, max_model_len, tallies, finishes)
    if config.tokenizer_backend == "fast":
        require_fast(tokenizer, front.sample_texts())
    return front


def output_facts(derenderer: Derenderer) -> OutputFacts:
    """What render must know of the output format."""
    chosen = derenderer.format
    if chosen is None:
        return OutputFacts()
    return OutputFacts(
        has_tool_parser=chosen.calls is not None,
        has_reasoning_parser=chosen.thought is not None,
        reasoning=derenderer.thought_is_over,
        tool_constraint=partial(demand_calls, derenderer),
        marks_are_special=shows_special_tokens(chosen),
    )


def shows_special_tokens(chosen: Format) -> Literal["never", "with_tools", "always"]:
    """When the wire asks an engine that writes text to keep special tokens, as the reference peer does for the family."""
    thoughts, _, calls = chosen.name.rpartition("+")
    if calls == "qwen3" or (thoughts and calls == "hermes"):
        return "always"
    return "with_tools" if calls in ("hermes", "granite4", "longcat") else "never"


def sampling_defaults(config: ModeConfig, files: ModelFiles) -> SamplingDefaults:
    """What holds where a request says nothing. Raises `ConfigError` for a folder without a generation config."""
    given: Mapping[str, Json] = files.generation_config
    own_folder = config.generation_config not in ("auto", "vllm")
    if config.generation_config == "vllm":
        given = {}
    elif own_folder:
        path = Path(config.generation_config) / "generation_config.json"
        try:
            given = codec.read_object(codec.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--generation-config {config.generation_config}: {error}") from error
    return SamplingDefaults.from_generation_config(given, config.override_generation_config, config_is_cap=own_folder)


def render_settings(config: ModeConfig, files: ModelFiles) -> RenderSettings:
    """Raises `ConfigError` for a template's name that the model does not know."""
    content_format = config.chat_template_content_format
    return RenderSettings(
        chat_template=named_template(config.chat_template, files.chat_template),
        content_format=None if content_format == "auto" else content_format,
        default_chat_template_kwargs=config.default_chat_template_kwargs,
        trust_request_chat_template=config.trust_request_chat_template,
        exclude_tools_when_tool_choice_none=config.exclude_tools_when_tool_choice_none,
        special_tokens_in_content=config.special_tokens_in_content,
    )


def choose_format(config: ModeConfig, files: ModelFiles, tokenizer: Tokenizer) -> Format | None:
    """The format that was asked for, else the one that template and vocabulary show; None is plain text."""
    own = files.tokenizer_config.get("response_template")
    own = own if isinstance(own, dict) else None
    try:
        if config.tool_call_parser or config.reasoning_parser:
            chosen = parsers.find_format(config.tool_call_parser, config.reasoning_parser, own)
        else:
            template = files.chat_template
            if isinstance(template, dict):
                template = template.get("tool_use") or template.get("default")
            chosen = parsers.detect_format(template, tokenizer.added_tokens.values(), own)
        return None if chosen is None else parsers.bind(chosen, tokenizer.added_tokens.values())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def engine_options(config: ModeConfig) -> EngineOptions:
    """The engine's part of the configuration, in its own words."""
    given = config.engine
    return EngineOptions(
        backend=config.engine_backend or "torch",
        device=given.device,
        threads=given.threads,
        dtype=given.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_queued=config.limits.max_waiting_requests,
        max_logprobs=config.limits.max_logprobs,
        block_size=given.block_size,
        kv_cache_memory=given.kv_cache_memory_bytes,
        encoder_cache_memory=given.encoder_cache_memory_bytes,
        gpu_memory_utilization=given.gpu_memory_utilization,
        enable_prefix_caching=given.enable_prefix_caching,
        scheduling_policy=given.scheduling_policy,
        stream_interval=config.stream_interval,
        seed=given.seed,
        engine_args=given.args,
        remote=remote_options(config) if given.urls else None,
    )
