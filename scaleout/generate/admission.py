"""What a request must satisfy before it reaches the loop. One bad id on the device would take everybody's engine along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.errors import BadRequest
from scaleout.generate.media import check_places
from scaleout.generate.options import EngineLimits
from scaleout.generate.repetition import MAX_PATTERN

MAX_BAD_WORDS = 128
"""Each costs a comparison per step and choice."""


def check_request(request: GenerateRequest, limits: EngineLimits) -> None:
    """Raises BadRequest, or NotSupported where this server lacks a part, with the texts of the wire contract."""
    params = request.sampling_params
    check_params(params)
    if params.n > limits.max_num_seqs:
        raise BadRequest(
            f"sampling_params.n must be at most the server's max_num_seqs ({limits.max_num_seqs}), got {params.n}.", "n"
        )
    if (request.features or request.content_parts) and not (limits.takes_media or limits.slot_ids):
        raise BadRequest(f"{limits.model} takes text alone on this engine: no multimodal features.", "features")
    check_repetition(params.repetition_detection or {})
    check_length(len(request.token_ids), limits.max_model_len)
    check_ids(request, limits.vocab_size)
    if limits.slot_ids:
        check_places(request, limits.slot_ids, limits.model)
    check_logprobs(params, limits)


def check_length(prompt_len: int, max_model_len: int) -> None:
    """A prompt has at least one id and leaves room for one more."""
    if not prompt_len:
        raise BadRequest("token_ids must hold at least one id", "token_ids")
    if prompt_len > max_model_len:
        raise BadRequest(
            f"The decoder prompt (length {prompt_len}) is longer than the maximum model length of {max_model_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens.",
            "token_ids",
        )
    if prompt_len == max_model_len:
        raise BadRequest(
            f"The decoder prompt (length {prompt_len}) plus the number of requested output tokens (at least 1) is longer than "
            f"the maximum model length of {max_model_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens plus the output.",
            "token_ids",
        )


def check_ids(request: GenerateRequest, vocab_size: int) -> None:
    """Every id, wherever it stands, is in the model's vocabulary."""
    params = request.sampling_params
    lowest, highest = min(request.token_ids), max(request.token_ids)
    if lowest < 0:
        raise BadRequest("token_ids must not contain negative values", "token_ids")
    if highest >= vocab_size:
        raise BadRequest(f"Token id {highest} is out of vocabulary", "token_ids")
    places: dict[str, Iterable[int]] = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "logprob_token_ids": params.logprob_token_ids or (),
    }
    for name, ids in places.items():
        outside = [id for id in ids if not 0 <= id < vocab_size]
        if outside:
            raise BadRequest(f"{name} contains ids outside the vocabulary of {vocab_size}: {outside[:10]}", name)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise BadRequest("allowed_token_ids must not be empty", "allowed_token_ids")


def check_logprobs(params: SamplingParams, limits: EngineLimits) -> None:
    """-1 stands for the whole vocabulary, and counts as that many."""
    wanted = {"logprobs": params.logprobs, "prompt_logprobs": params.prompt_logprobs}
    wanted["logprob_token_ids"] = len(params.logprob_token_ids or ())
    for name, count in wanted.items():
        if count is None or limits.max_logprobs == -1:
            continue
        count = limits.vocab_size if count == -1 else count
        if count > limits.max_logprobs:
            raise BadRequest(
                f"Requested {name} of {count}, which is greater than max allowed: {limits.max_logprobs}", name
            )


def check_repetition(spec: Mapping[str, int]) -> None:
    """All of it or none: a largest pattern, and how often one must come."""
    largest, smallest, count = (spec.get(name, 0) for name in ("max_pattern_size", "min_pattern_size", "min_count"))
    name = "repetition_detection"
    if not all(isinstance(value, int) for value in (largest, smallest, count)):
        raise BadRequest(f"{name} must hold integers", name)
    if not 0 <= largest <= MAX_PATTERN:
        raise BadRequest(f"{name}.max_pattern_size must be in [0, {MAX_PATTERN}], got {largest}.", name)
    if not 0 <= smallest <= max(largest, 0):
        raise BadRequest(f"{name}.min_pattern_size must be in [0, max_pattern_size], got {smallest}.", name)
    if largest and count < 2:
        raise BadRequest(f"{name}.min_count must be at least 2, got {count}.", name)


def check_params(params: SamplingParams) -> None:
    """Ranges that need no knowledge of the model (CONTRACT 2.3)."""
    greedy = params.temperature < 1e-5
    rules: list[tuple[bool, str, object, str]] = [
        (params.n >= 1, "n", params.n, "must be at least 1"),
        (not (greedy and params.n > 1), "n", params.n, "must be 1 when using greedy sampling"),
        (-2 <= params.presence_penalty <= 2, "presence_penalty", params.presence_penalty, "must be in [-2, 2]"),
        (-2 <= params.frequency_penalty <= 2, "frequency_penalty", params.frequency_penalty, "must be in [-2, 2]"),
        (
            isfinite(params.repetition_penalty) and params.repetition_penalty > 0,
            "repetition_penalty",
            params.repetition_penalty,
            "must be a finite number greater than zero",
        ),
        (
            isfinite(params.temperature) and 0 <= params.temperature <= 2,
            "temperature",
            params.temperature,
            "must be in [0, 2]",
        ),
        (0 < params.top_p <= 1, "top_p", params.top_p, "must be in (0, 1]"),
        (params.top_k >= -1, "top_k", params.top_k, "must be -1 or 0 (disabled), or at least 1"),
        (0 <= params.min_p <= 1, "min_p", params.min_p, "must be in [0, 1]"),
        (params.max_tokens is None or params.max_tokens >= 1, "max_tokens", params.max_tokens, "must be at least 1"),
        (params.min_tokens >= 0, "min_tokens", params.min_tokens, "must be greater than or equal to 0"),
        (
            params.max_tokens is None or params.min_tokens <= params.max_tokens,
            "min_tokens",
            params.min_tokens,
            f"must be less than or equal to max_tokens={params.max_tokens}",
        ),
        (params.logprobs is None or params.logprobs >= -1, "logprobs", params.logprobs, "must be non-negative or -1"),
        (
            params.prompt_logprobs is None or params.prompt_logprobs >= -1,
            "prompt_logprobs",
            params.prompt_logprobs,
            "must be non-negative or -1",
        ),
        (
            params.stream_interval is None or params.stream_interval >= 1,
            "stream_interval",
            params.stream_interval,
            "must be at least 1",
        ),
        (
            len(params.bad_words) <= MAX_BAD_WORDS,
            "bad_words",
            len(params.bad_words),
            f"must be at most {MAX_BAD_WORDS}",
        ),
        (all(params.bad_words), "bad_words", list(params.bad_words)[:5], "must not contain an empty string"),
        (
            params.thinking_token_budget is None or params.thinking_token_budget >= -1,
            "thinking_token_budget",
            params.thinking_token_budget,
            "must be non-negative, or -1 for none",
        ),
        (
            all(isfinite(bias) for bias in (params.logit_bias or {}).values()),
            "logit_bias",
            None,
            "must hold finite numbers",
        ),
    ]
    for holds, name, value, text in rules:
        if not holds:
            raise BadRequest(f"{name} {text}, got {value}.", name, value)
