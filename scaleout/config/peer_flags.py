"""Flags that users of vLLM type and that are no settings here: what becomes of each, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen


@frozen
class PeerFlag:
    """`values`: how many follow the flag (None: one or more). `fate`:

    * engine: an argument of the vllm engine; without an engine it has no effect; with another engine it is an error;
    * ignored: accepted, with a line in the log that gives the reason;
    * refused: an error that gives the reason, since ignoring it would change answers or weaken the server.
    """

    name: str
    values: int | None
    fate: Literal["engine", "ignored", "refused"]
    reason: str


_ENGINE_SWITCHES = """enforce-eager enable-chunked-prefill enable-expert-parallel enable-eplb async-scheduling enable-sleep-mode
    disable-custom-all-reduce disable-sliding-window disable-cascade-attn data-parallel-external-lb data-parallel-hybrid-lb
    disable-hybrid-kv-cache-manager disable-chunked-mm-input"""
_ENGINE_VALUES = """tensor-parallel-size pipeline-parallel-size data-parallel-size data-parallel-size-local data-parallel-rank
    data-parallel-start-rank data-parallel-address data-parallel-rpc-port data-parallel-backend decode-context-parallel-size
    prefill-context-parallel-size distributed-executor-backend nnodes node-rank master-addr master-port quantization load-format
    model-loader-extra-config kv-cache-dtype num-gpu-blocks-override cpu-offload-gb attention-backend moe-backend model-impl
    download-dir speculative-config compilation-config optimization-level kv-transfer-config kv-events-config ec-transfer-config
    additional-config structured-outputs-config max-num-scheduled-tokens max-num-active-seqs long-prefill-token-threshold
    scheduler-cls worker-cls worker-extension-cls logprobs-mode logits-processors kernel-config performance-mode profiler-config
    prefix-caching-hash-algo swap-space hf-overrides"""
_ENGINE_REASON = "an argument of the vllm engine"

_NO_BODIES = "bodies are never logged"
_PLUGIN = "output formats are modules in scaleout/parsers/formats"
_LORA = "LoRA adapters are not served"

_IGNORED = {
    "enable-auto-tool-choice": (0, "tool calls are always read where the output format is known"),
    "enable-offline-docs": (0, "the page about the API never loads anything from elsewhere"),
    "enable-prompt-tokens-details": (0, "cached tokens are always reported when the engine knows them"),
    "enable-server-load-tracking": (0, "/load always counts"),
    "enable-log-requests": (0, _NO_BODIES),
    "enable-log-outputs": (0, _NO_BODIES),
    "enable-log-deltas": (0, _NO_BODIES),
    "max-log-len": (1, _NO_BODIES),
    "log-error-stack": (0, "unexpected errors are always logged with their stack, and never sent"),
    "disable-log-stats": (0, "statistics are metrics, not log lines"),
    "h11-max-incomplete-event-size": (1, "the HTTP parser has its own fixed bounds"),
    "h11-max-header-count": (1, "the HTTP parser has its own fixed bounds"),
    "trust-remote-code": (0, "code from model repositories is never run"),
    "use-tqdm-on-load": (0, "loading shows no progress bar"),
    "tokenizer-mode": (1, "tokenizers are always read from their own files"),
    "fingerprint-mode": (1, "answers carry no system fingerprint"),
    "fingerprint-value": (1, "answers carry no system fingerprint"),
}
_REFUSED = {
    "middleware": (1, "this is not an ASGI program"),
    "tool-parser-plugin": (1, _PLUGIN),
    "reasoning-parser-plugin": (1, _PLUGIN),
    "tool-server": (1, "built-in tools are not served"),
    "tool-strict-level": (1, "calls are not constrained by their schema yet"),
    "enable-mm-embeds": (0, "media come as files, not as tensors"),
    "enable-prompt-embeds": (0, "prompts are text or token ids"),
    "enable-lora": (0, _LORA),
    "lora-modules": (None, _LORA),
    "max-loras": (1, _LORA),
    "max-lora-rank": (1, _LORA),
    "response-role": (1, "answers are always by the assistant"),
    "skip-tokenizer-init": (0, "use --tokens-only"),
    "headless": (0, "use --engine-args with the vllm engine"),
    "grpc": (0, "only HTTP is spoken"),
}

PEER_FLAGS: Mapping[str, PeerFlag] = {
    **{name: PeerFlag(name, 0, "engine", _ENGINE_REASON) for name in _ENGINE_SWITCHES.split()},
    **{name: PeerFlag(name, 1, "engine", _ENGINE_REASON) for name in _ENGINE_VALUES.split()},
    **{name: PeerFlag(name, values, "ignored", reason) for name, (values, reason) in _IGNORED.items()},
    **{name: PeerFlag(name, values, "refused", reason) for name, (values, reason) in _REFUSED.items()},
}
"""Flag name without dashes → what becomes of it."""

SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-ep": "enable-expert-parallel",
    "-dcp": "decode-context-parallel-size",
    "-q": "quantization",
    "-n": "nnodes",
    "-r": "node-rank",
    "-asc": "workers",
    "-sc": "speculative-config",
    "-cc": "compilation-config",
}
"""One-dash spellings."""
