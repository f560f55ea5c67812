"""The token wire between the stages: GenerateRequest, its result and its stream, as JSON (CONTRACT 2.3, 2.8, 6.3, 6.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from attrs import fields

from scaleout import codec
from scaleout.codec import Unfit, finite, read_float, read_int, read_object
from scaleout.core import (
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    Json,
    PositionLogprobs,
    PromptLogprobs,
    SamplingParams,
    TokenDelta,
    TokenLogprob,
    Usage,
)
from scaleout.errors import BadRequest
from scaleout.feature_wire import read_features, write_features

# The peer writes these even at their defaults; `max_tokens` it forgets at 16, which its engine then reads as "no limit".
_ALWAYS = frozenset(
    (
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "temperature",
        "top_p",
        "min_p",
        "stop",
        "stop_token_ids",
        "max_tokens",
        "output_kind",
        "skip_clone",
        "bad_words",
        "skip_reading_prefix_cache",
    )
)
_GREEDY_DROPS = frozenset(("top_p", "min_p", "top_k"))
_ON_REQUEST = frozenset(("assistant_tokens_mask", "spans", "derender_state"))
_PARAMS = [(a.name, a.default, a.name in _ALWAYS) for a in fields(SamplingParams)]
_REQUEST_FIELDS = [a.name for a in fields(GenerateRequest) if a.name != "trace_headers"]
# All at once: attribute by attribute would be a good part of the time of a short request.
_params_of = attrgetter(*(name for name, _, _ in _PARAMS))
_fields_of = attrgetter(*_REQUEST_FIELDS)
MAX_BIAS = 100.0


# ---------------------------------------------------------------------------------------------- request


def write_sampling_params(params: SamplingParams) -> dict[str, Json]:
    """The wire object: fields off their default, and those a peer always writes. Greedy requests carry no cut-offs."""
    wire = {
        name: value
        for (name, default, always), value in zip(_PARAMS, _params_of(params), strict=True)
        if always or value != default
    }
    if params.temperature < 1e-5:
        for name in _GREEDY_DROPS:
            wire.pop(name, None)
    return wire


def write_generate_request(request: GenerateRequest) -> dict[str, Json]:
    """Every key of the wire, nulls included; the three fields beyond the peer's wire only where they were asked for."""
    wire: dict[str, Json] = dict(zip(_REQUEST_FIELDS, _fields_of(request), strict=True))
    for name in _ON_REQUEST:
        if wire[name] is None:
            del wire[name]
    wire["sampling_params"] = write_sampling_params(request.sampling_params)
    if request.stream_options is not None:
        wire["stream_options"] = codec.unstructure(request.stream_options)
    if request.features is not None:
        wire["features"] = write_features(request.features)
    return wire


def _prepare_sampling_params(wire: dict[str, Json]) -> dict[str, Json]:
    values = codec.drop_nulls(wire)
    if "max_tokens" not in wire:
        # A body that a peer's render wrote (`skip_clone`) lacks max_tokens only when it is 16.
        values["max_tokens"] = 16 if wire.get("skip_clone") is True else None
    elif wire["max_tokens"] is None:
        values["max_tokens"] = None
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    if "logit_bias" in values:
        values["logit_bias"] = codec.read_member(values, "logit_bias", read_logit_bias)
    return values


def read_logit_bias(value: Json) -> dict[int, float]:
    """`{"id": bias}` with ids as integers and biases clamped to ±100."""
    given = read_object(value)
    biases: dict[int, float] = {}
    for key in given:
        try:
            token_id = int(key)
        except ValueError:
            raise Unfit(f"key {key!r} cannot be converted to an integer token ID", f".{key}") from None
        biases[token_id] = max(-MAX_BIAS, min(MAX_BIAS, codec.read_member(given, key, read_float)))
    return biases


def _prepare_generate_request(wire: dict[str, Json]) -> dict[str, Json]:
    values = codec.drop_nulls(wire)
    values.pop("trace_headers", None)
    ids = values.get("token_ids")
    if ids == []:
        raise Unfit("List should have at least 1 item after validation, not 0", ".token_ids")
    if "sampling_params" not in values:
        raise Unfit("Field required", ".sampling_params")
    values.setdefault("request_id", "")
    if "priority" in values and not -(2**63) <= codec.read_member(values, "priority", read_int) < 2**63:
        raise Unfit("Input should be a 64-bit integer", ".priority")
    salt = values.get("cache_salt")
    if isinstance(salt, str):
        check_cache_salt(salt)
    if values.get("content_parts") is not None and values.get("features") is not None:
        raise Unfit("Value error, content_parts and features are mutually exclusive")
    if "features" in values:
        elsewhere = bool(values.get("ec_transfer_params"))
        tokens = len(ids) if isinstance(ids, list) else 0
        values["features"] = codec.read_member(
            values, "features", lambda f: read_features(f, tokens, elsewhere=elsewhere)
        )
    return values


def check_cache_salt(salt: str) -> None:
    """The reference peer's rule for salts (CONTRACT 2.3). Raises `BadRequest`."""
    if not salt:
        raise BadRequest("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > 128 or any(c in salt for c in "@/\\\0"):
        raise BadRequest(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL.",
            "cache_salt",
        )


def read_generate_request(body: Json) -> GenerateRequest:
    """Raises `InvalidField` with the JSON path. Bounds that need the model are the engine's to check."""
    return codec.structure(body, GenerateRequest)


# ---------------------------------------------------------------------------------------------- result and stream


def write_usage(usage: Usage, details: bool = True) -> dict[str, Json]:
    """OpenAI's usage object; the details objects are null where nothing was counted, left out where `details` is off."""
    wire: dict[str, Json] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    if details or cached is not None:
        wire["prompt_tokens_details"] = None if cached is None else {"cached_tokens": cached}
    if details or reasoning is not None:
        wire["completion_tokens_details"] = None if reasoning is None else {"reasoning_tokens": reasoning}
    return wire


def write_logprobs(positions: Sequence[PositionLogprobs] | None) -> Json:
    """`{"content": [{token_id, logprob, rank, top_logprobs: […]}]}`."""
    if positions is None:
        return None
    return {
        "content": [
            {**_write_logprob(p.sampled), "top_logprobs": [_write_logprob(t) for t in p.top]} for p in positions
        ]
    }


def _write_logprob(one: TokenLogprob) -> dict[str, Json]:
    return {"token_id": one.token_id, "logprob": finite(one.logprob), "rank": one.rank or None}


def write_prompt_logprobs(given: PromptLogprobs | None, spell: Callable[[int], str] | None = None) -> Json:
    """Per prompt position `{"<id>": {logprob, rank, decoded_token}}`, null at the first. Engines that know no text spell no token."""
    if given is None:
        return None
    return [
        None
        if position is None
        else {
            str(one.token_id): {
                "logprob": finite(one.logprob),
                "rank": one.rank or None,
                "decoded_token": None if spell is None else spell(one.token_id),
            }
            for one in position.values()
        }
        for position in given
    ]


def _write_choice(delta: TokenDelta) -> dict[str, Json]:
    return {
        "index": delta.index,
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "token_ids": list(delta.token_ids),
        "routed_experts": None,
        "sampling_mask": None,
    }


def _weight_versions(tokens: int) -> list[Json]:
    return [{"version": "default", "start": 0, "end": tokens}]


def write_generate_response(response: GenerateResponse) -> dict[str, Json]:
    return {
        "request_id": response.request_id,
        "model": response.model,
        "created": response.created,
        "usage": None if response.usage is None else write_usage(response.usage),
        "prompt_logprobs": write_prompt_logprobs(response.prompt_logprobs),
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": response.prompt_token_ids,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": response.kv_transfer_params,
        "ec_transfer_params": response.ec_transfer_params,
        "output_mode": "tokens",
        "choices": [
            {
                **_write_choice(c),
                "weight_versions": _weight_versions(len(c.token_ids)),
                "logprobs": write_logprobs(c.logprobs),
            }
            for c in response.choices
        ],
    }


def write_generate_chunk(chunk: GenerateChunk, tokens_so_far: int = 0) -> dict[str, Json]:
    """One event of the stream. `tokens_so_far` is the choice's count, this chunk included, for its last event."""
    if not chunk.choices:
        wire: dict[str, Json] = {"request_id": chunk.request_id}
        if chunk.usage is not None:
            wire["usage"] = write_usage(chunk.usage, details=False)
        return {**wire, "output_mode": "tokens", "choices": []}
    wire = {
        "request_id": chunk.request_id,
        "usage": None if chunk.usage is None else write_usage(chunk.usage, details=False),
    }
    # The peer loses these four in streams; a key that is null stays out, as its clients expect.
    once = {
        "prompt_token_ids": chunk.prompt_token_ids,
        "prompt_logprobs": write_prompt_logprobs(chunk.prompt_logprobs),
        "kv_transfer_params": chunk.kv_transfer_params,
        "ec_transfer_params": chunk.ec_transfer_params,
    }
    wire.update((name, value) for name, value in once.items() if value is not None)
    wire["output_mode"] = "tokens"
    choices = []
    for delta in chunk.choices:
        choice = _write_choice(delta)
        if delta.finish_reason is not None:
            choice["weight_versions"] = _weight_versions(tokens_so_far)
        choice["logprobs"] = write_logprobs(delta.logprobs)
        choices.append(choice)
    wire["choices"] = choices
    return wire


codec.prepare(SamplingParams, _prepare_sampling_params)
codec.prepare(GenerateRequest, _prepare_generate_request)
