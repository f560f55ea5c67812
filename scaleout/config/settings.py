"""Mode, Limits, EngineOptions, ModeConfig: every setting once, with its default, its flag and its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Literal

from attrs import field, frozen

from scaleout.config.media import MediaOptions
from scaleout.config.options import COMMA_LIST, OBJECT, SWITCH, TEMPLATE, TEXT, TEXTS, choice, decimal, integer, option
from scaleout.config.web import WebOptions


class Mode(StrEnum):
    """What one process serves (see docs/structure.md)."""

    RENDER_ONLY = "render-only"
    TOKENS_ONLY = "tokens-only"
    STANDARD = "standard"


_limit = partial(option, group="limits")


@frozen
class Limits:
    """Bounds that are checked before any decoding, parsing, templating or allocation. Each help text ends with its reason."""

    max_body_bytes: int = _limit(
        64 << 20,
        integer(1),
        "Bytes of a request body. A 128k-token prompt as JSON ids is about 1 MB; media in base64 needs the rest.",
    )
    max_json_depth: int = _limit(
        128,
        integer(4, 512),
        "Nesting of JSON. Deeper than schemas of tools go; the interpreter's own stack ends at 1000.",
    )
    max_messages: int = _limit(16_384, integer(1), "Messages in one conversation. Long agent runs have some thousands.")
    max_tools: int = _limit(1024, integer(1), "Declared tools. Public services allow 128 or fewer.")
    max_stop_strings: int = _limit(
        4,
        integer(0),
        "Stop strings in one request. Each is searched for in every piece of text.",
        vllm_env="VLLM_MAX_STOP_STRINGS",
    )
    max_stop_chars: int = _limit(
        4096,
        integer(1),
        "Characters of one stop string. As many may be held back from a stream and carried in its state.",
    )
    max_bad_words: int = _limit(
        128,
        integer(0),
        "Bad words in one request. Each is a sequence tested at every step.",
        vllm_env="VLLM_MAX_NUM_BAD_WORDS",
    )
    max_n: int = _limit(
        16_384,
        integer(1),
        "Choices of one request (n). Each is a sequence in the engine.",
        vllm_env="VLLM_MAX_N_SEQUENCES",
    )
    max_logprobs: int = _limit(
        20, integer(-1), "Logprobs at one position, -1 for the whole vocabulary. A reply grows by this factor."
    )
    max_completion_prompts: int = _limit(
        1024,
        integer(1),
        "Prompts in one completion request. Each becomes a request of its own.",
        vllm_env="VLLM_MAX_COMPLETION_PROMPTS",
    )
    max_prompt_chars: int | None = _limit(
        None,
        integer(1, words={"auto": None}),
        "Characters of one prompt. auto: context length times the longest token, beyond which no prompt can fit.",
    )
    max_ids_per_choice: int | None = _limit(
        None,
        integer(1, words={"auto": None}),
        "Token ids of one choice in a derender request. auto: the context length, since no engine makes more.",
    )
    max_derender_choices: int = _limit(
        16_384,
        integer(1),
        "Choices in one derender request over all its responses. As many as --max-n allows an engine.",
    )
    max_state_bytes: int = _limit(
        1 << 20,
        integer(1024),
        "Bytes of a client-carried stream_state. 64 KiB of a call may be held, at up to six bytes a character, twice over.",
    )
    max_template_seconds: float = _limit(
        30.0,
        decimal(0, negative=0.0),
        "Seconds for one chat template, 0 for no limit. Templates of trusted requests may loop.",
        vllm_env="VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT",
    )
    max_template_chars: int = _limit(
        64 << 20, integer(1), "Characters that a template may write. As many as a body may bring in."
    )
    max_request_id_chars: int = _limit(
        256, integer(16), "Characters of a request id from outside. It goes to logs and headers."
    )
    max_stream_silence: float = _limit(
        300.0,
        decimal(0),
        "Seconds without a byte of an event stream to derender. A request may wait long for an engine, but not for ever.",
    )
    max_concurrent_work: int = _limit(
        1024,
        integer(1),
        "Render and derender requests in one process, running or queued; more get 503. Work waiting longer than clients do is wasted.",
    )
    max_waiting_requests: int = _limit(
        1024, integer(1), "Sequences waiting for the engine; more get 503. A queue without end answers nobody."
    )
    max_stored_responses: int = _limit(
        1000,
        integer(0),
        "Responses kept for GET /v1/responses/{id} and previous_response_id, 0 for none. "
        "Clients rarely delete what they no longer need, so the one used longest ago goes first.",
    )
    max_stored_bytes: int = _limit(
        256 << 20,
        integer(1),
        "Bytes of all kept responses with their conversations. A turn of an agent may be 1 MB, so some hundreds fit.",
    )


_engine = partial(option, group="engine")


@frozen
class EngineOptions:
    """What an engine backend is told. Which fields matter depends on the backend."""

    backend: str | None = _engine(
        None,
        choice("torch", "echo", "vllm", "remote"),
        "Engine. Default: torch, or remote when --engine-url is given.",
        name="--engine-backend",
    )
    urls: Sequence[str] = _engine(
        (),
        TEXTS,
        "Servers that make tokens: ours, vLLM, SGLang, llama.cpp. With them a render-only server offers the coupled routes too.",
        name="--engine-url",
    )
    dialect: str = _engine(
        "auto",
        choice("auto", "generate", "completions", "sglang", "llamacpp"),
        "How the servers at --engine-url are spoken to. auto asks each of them.",
        name="--engine-dialect",
    )
    api_key: str | None = _engine(
        None, TEXT, "Key for the servers at --engine-url.", name="--engine-api-key", secret=True
    )
    models: Sequence[str] = _engine(
        (),
        TEXTS,
        "Names one of which the servers at --engine-url must serve. Default: MODEL and --served-model-name.",
        name="--engine-model",
    )
    check: bool = _engine(
        True,
        SWITCH,
        "Refuse servers at --engine-url whose model, vocabulary, special ids or tokenizer differ from those here.",
        name="--engine-check",
    )
    connect_timeout: float = _engine(
        5.0,
        decimal(0.01),
        "Seconds for a connection to a server at --engine-url. Within a data centre it takes milliseconds.",
        name="--engine-connect-timeout",
    )
    silence: float = _engine(
        300.0,
        decimal(0.1),
        "Seconds that a server at --engine-url may send nothing while it works on a request. A full one makes requests wait.",
        name="--engine-read-timeout",
    )
    health_interval: float = _engine(
        1.0,
        decimal(0.01),
        "Seconds between health checks of a server at --engine-url.",
        name="--engine-health-interval",
    )
    args: Mapping[str, Any] = _engine(
        {}, OBJECT, "Further arguments for the vllm engine, by their names there.", name="--engine-args"
    )
    device: str = _engine("auto", TEXT, "auto, cpu, cuda, cuda:N. auto takes a GPU when there is one.")
    dtype: str = _engine(
        "auto",
        choice("auto", "float32", "bfloat16", "float16"),
        "Number type of weights and cache. auto: as the model was saved.",
    )
    threads: int | None = _engine(
        None,
        integer(1, words={"auto": None}),
        "CPU threads of the engine. Default: torch's own choice.",
        name="--engine-threads",
    )
    max_num_seqs: int | None = _engine(
        None, integer(1, words={"auto": None}), "Sequences in one step. Default: the backend's choice."
    )
    max_num_batched_tokens: int | None = _engine(
        None, integer(1, words={"auto": None}), "Tokens in one step. Default: the backend's choice."
    )
    gpu_memory_utilization: float = _engine(0.9, decimal(0.05, 1.0), "Share of the GPU's memory for weights and cache.")
    kv_cache_memory_bytes: int | None = _engine(
        None, integer(1, words={"auto": None}), "Bytes of the KV cache. Default: what the share above leaves."
    )
    encoder_cache_memory_bytes: int = _engine(
        256 << 20,
        integer(0),
        "Bytes of what the model made of pictures and sounds, kept for other requests. 0 keeps nothing.",
    )
    block_size: int | None = _engine(
        None,
        integer(1, 1024, words={"auto": None}),
        "Tokens in one block of the KV cache. Default: the backend's choice.",
    )
    scheduling_policy: Literal["fcfs", "priority"] = _engine(
        "fcfs", choice("fcfs", "priority"), "Order of waiting requests."
    )
    seed: int | None = _engine(
        None,
        integer(0, words={"none": None}),
        "Fixes the seeds of requests that bring none. Default: they differ every time.",
    )
    enable_prefix_caching: bool = _engine(True, SWITCH, "Reuse the cache of shared prompt beginnings.")


_model = partial(option, group="model")
_server = partial(option, group="server")
_render = partial(option, group="render")
_derender = partial(option, group="derender")
_log = partial(option, group="logging")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@frozen
class ModeConfig:
    """Everything `make_app` needs to know. Made by `ModeConfig.load`, or directly in tests."""

    mode: Mode
    mode_source: str = field(default="the configuration", kw_only=True)
    """How the mode was chosen, for error texts."""
    notes: Sequence[str] = field(default=(), kw_only=True)
    """What is said once at start: settings that were accepted and have no effect here."""

    model: str = _model("", TEXT, "Hugging Face folder, hub id, or GGUF file.")
    served_model_names: Sequence[str] = _model(
        lambda self: (self.model,),
        TEXTS,
        "Names that requests may use; answers carry the first. Default: MODEL.",
        name="--served-model-name",
    )
    tokenizer: str | None = _model(None, TEXT, "Where the tokenizer comes from. Default: MODEL.")
    revision: str | None = _model(None, TEXT, "Branch, tag or commit on the hub.", aliases=("--tokenizer-revision",))
    hf_token: str | None = _model(None, TEXT, "Token for the hub. Default: what its own login left.", secret=True)
    max_model_len: int | None = _model(
        None,
        integer(1, words={"auto": None, "-1": None}),
        "Context length in tokens; 4k and 4K are understood. Default: the model's own.",
    )
    generation_config: str = _model(
        "auto", TEXT, "Where default sampling parameters come from: auto (the model), vllm (none), or a folder."
    )
    override_generation_config: Mapping[str, Any] = _model({}, OBJECT, "Default sampling parameters laid over those.")

    scale_out: bool = _server(
        lambda self: self.mode is not Mode.STANDARD,
        SWITCH,
        "Offer render, derender and generate on a standard server; the dedicated modes always do. "
        "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=0|1 is the same switch.",
        name="--enable-scale-out",
        vllm_env="VLLM_ENABLE_SCALE_OUT_ENDPOINTS",
    )
    host: str | None = _server(None, TEXT, "Address to listen on. Default: all interfaces.")
    port: int = _server(8000, integer(0, 65535), "Port; 0 takes a free one.")
    uds: str | None = _server(None, TEXT, "Path of a Unix socket to listen on, in place of host and port.")
    api_keys: Sequence[str] = _server(
        (),
        TEXTS,
        "Keys; one of them is then needed on every route but the health ones.",
        name="--api-key",
        vllm_env="VLLM_API_KEY",
        secret=True,
    )
    root_path: str = _server("", TEXT, "Prefix under which a proxy shows this server.")
    workers: int = _server(
        lambda self: cores() if self.mode is Mode.RENDER_ONLY and not self.uds else 1,
        integer(1, 1024),
        "Processes on one port, render-only. Default there: one for each core.",
        aliases=("--api-server-count",),
    )
    shutdown_timeout: float = _server(30.0, decimal(0), "Seconds that running answers get after SIGTERM.")
    keep_alive_timeout: float = _server(
        5.0, decimal(0), "Seconds that an idle connection stays open.", vllm_env="VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
    )
    sse_keep_alive_interval: float = _server(
        0.0, decimal(0), "Seconds between comments on a silent stream, 0 for none."
    )
    stream_interval: int = _server(1, integer(1), "Tokens that a stream gathers before it sends, at least.")
    enable_force_include_usage: bool = _server(
        False,
        SWITCH,
        "End every stream of chat and completions with its usage, whether stream_options asks for it or not.",
    )
    enable_request_id_headers: bool = _server(False, SWITCH, "Put X-Request-Id on every answer.")
    enable_tokenizer_info_endpoint: bool = _server(False, SWITCH, "Offer /tokenizer_info.")
    return_tokens_as_token_ids: bool = _server(
        False, SWITCH, "Write tokens in logprobs as token_id:N unless a request says otherwise."
    )
    skip_model_name_validation: bool = _server(
        False, SWITCH, "Take any model name in requests and echo it.", vllm_env="VLLM_SKIP_MODEL_NAME_VALIDATION"
    )

    chat_template: str | None = _render(
        None,
        TEMPLATE,
        "Chat template: a file, the text itself, or the name of one of the model's. Default: the model's.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = _render(
        "auto", choice("auto", "string", "openai"), "How templates see message content. auto looks at the template."
    )
    default_chat_template_kwargs: Mapping[str, Any] = _render(
        {}, OBJECT, "Template variables that requests may override."
    )
    trust_request_chat_template: bool = _render(False, SWITCH, "Let requests bring a chat template.")
    exclude_tools_when_tool_choice_none: bool = _render(
        False, SWITCH, "Leave tools out of the prompt when tool_choice is none."
    )
    special_tokens_in_content: Literal["text", "allow"] = _render(
        "text",
        choice("text", "allow"),
        "What a special token spelled in supplied text becomes: plain text, or the token itself.",
    )
    tokenizer_backend: str = _render(
        "auto",
        choice("auto", "fast", "hf"),
        "Encoder. auto takes the fast one where a check at start finds no difference.",
    )
    renderer_threads: int = _render(
        lambda self: min(4, max(2, cores() // self.workers)),
        integer(1, 256),
        "Threads for long render and derender work, each process; the fast encoder needs one at a time. "
        "Default: 2 to 4, by the cores of each process.",
        name="--renderer-num-workers",
    )

    tool_call_parser: str | None = _derender(
        None, TEXT, "Output format of tool calls. Default: what the model's template and vocabulary show."
    )
    reasoning_parser: str | None = _derender(None, TEXT, "Output format of reasoning. Default: likewise.")

    log_level: str = _log(
        "info",
        choice("debug", "info", "warning", "error", "critical"),
        "Least severity that is logged.",
        aliases=("--uvicorn-log-level",),
        vllm_env="VLLM_LOGGING_LEVEL",
    )
    log_format: Literal["text", "json"] = _log(
        "text", choice("text", "json"), "Lines for people, or one JSON object a line for programs."
    )
    access_log: bool = _log(True, SWITCH, "One line for each request.", opposite="--disable-uvicorn-access-log")
    disable_access_log_for_endpoints: Sequence[str] = _log((), COMMA_LIST, "Paths that get none.")

    limits: Limits = field(factory=Limits, kw_only=True)
    media: MediaOptions = field(factory=MediaOptions, kw_only=True)
    engine: EngineOptions = field(factory=EngineOptions, kw_only=True)
    web: WebOptions = field(factory=WebOptions, kw_only=True)

    @classmethod
    def load(cls, argv: Sequence[str], environ: Mapping[str, str]) -> ModeConfig:
        """From the command line (without the program's name), environment and config file. ConfigError lists every problem."""
        from scaleout.config.load import load

        return load(argv, environ)

    @property
    def engine_backend(self) -> str | None:
        """The backend to open; None where there is no engine at all."""
        if self.engine.backend or self.engine.urls:
            return self.engine.backend or "remote"
        return None if self.mode is Mode.RENDER_ONLY else "torch"
