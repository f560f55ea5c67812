"""Request fields that several dialects share: sampling, identity, transport, and what the answer should carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal

from attrs import define, fields

from scaleout import codec
from scaleout.codec import Unfit
from scaleout.core import Json, RequestOptions, SamplingWishes, StreamOptions, TokenIds
from scaleout.errors import BadRequest
from scaleout.wire import check_cache_salt, read_logit_bias

INT64 = 2**63


@define(kw_only=True, slots=True)
class SharedBody:
    """Fields of chat completions and completions (CONTRACT 2.4, 2.5). None means "not sent": null is read so too."""

    model: str | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    logprob_token_ids: TokenIds | None = None
    logit_bias: Mapping[str, Json] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Sequence[str] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: Mapping[str, Json] | None = None
    response_format: Mapping[str, Json] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Mapping[str, Json] | None = None
    stream_interval: int | None = None
    use_beam_search: bool = False
    vllm_xargs: Mapping[str, Json] | None = None
    request_id: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool = False
    return_token_offsets: bool = False
    return_tokens_as_token_ids: bool = False
    return_prompt_text: bool = False
    return_assistant_tokens_mask: bool = False
    return_spans: bool = False
    return_derender_state: bool = False
    user: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Json] | None = None
    ec_transfer_params: Mapping[str, Json] | None = None


def field_names(body: type[Any]) -> frozenset[str]:
    """The names of a body's fields, for telling unknown ones."""
    return frozenset(field.name for field in fields(body))


def prepare_shared(wire: dict[str, Json]) -> dict[str, Json]:
    """Nulls out, one stop string as a list, ids of `logit_bias` checked, 64-bit bounds."""
    values = codec.drop_nulls(wire)
    for name in ("prompt_logprobs", "top_logprobs"):
        if isinstance(values.get(name), str):
            raise Unfit("Input should be a valid integer", f".{name}")
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    for name in ("priority", "seed"):
        if name in values and not -INT64 <= codec.read_member(values, name, codec.read_int) < INT64:
            raise Unfit("Input should be a 64-bit integer", f".{name}")
    for name, least in (("truncate_prompt_tokens", -1), ("stream_interval", 1)):
        if name in values and codec.read_member(values, name, codec.read_int) < least:
            raise Unfit(f"Input should be greater than or equal to {least}", f".{name}")
    if "vllm_xargs" in values:
        for key, value in codec.read_member(values, "vllm_xargs", codec.read_object).items():
            if isinstance(value, dict):
                raise Unfit("Input should be a valid string, number or list", f".vllm_xargs.{key}")
    return values


def check_shared(body: SharedBody) -> None:
    """Rules between fields, in the reference peer's words (CONTRACT 2.4). Raises `BadRequest`."""
    if body.use_beam_search:
        raise BadRequest("Beam search is not supported", "use_beam_search")
    if body.stream_options is not None and not body.stream:
        raise BadRequest(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
        )
    prompt_logprobs = body.prompt_logprobs
    if prompt_logprobs is not None:
        if body.stream and (prompt_logprobs > 0 or prompt_logprobs == -1):
            raise BadRequest("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if prompt_logprobs < 0 and prompt_logprobs != -1:
            raise BadRequest("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", prompt_logprobs)
    structured = body.structured_outputs
    if structured is not None and sum(structured.get(kind) is not None for kind in ("json", "regex", "choice")) > 1:
        raise BadRequest(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
            "structured_outputs",
        )
    if body.response_format is not None:
        read_response_format(body.response_format)
    if body.cache_salt is not None:
        check_cache_salt(body.cache_salt)


def read_response_format(given: Mapping[str, Json]) -> dict[str, Json] | None:
    """OpenAI's `response_format` as `structured_outputs`; None for plain text. Raises `BadRequest`."""
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        schema = given.get("json_schema")
        if schema is None:
            raise BadRequest(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                "response_format",
            )
        if isinstance(schema, dict) and not isinstance(schema.get("name"), str):
            raise codec.invalid("body.response_format.json_schema.name", "Field required")
        if not isinstance(schema, dict) or not isinstance(schema.get("schema", schema.get("json_schema")), dict):
            raise codec.invalid("body.response_format.json_schema.schema", "Input should be a valid dictionary")
        return {"json": schema.get("schema", schema.get("json_schema"))}
    if kind == "structural_tag":
        return {"structural_tag": codec.dumps(dict(given)).decode()}
    raise codec.invalid(
        "body.response_format.type", "Input should be 'text', 'json_object', 'json_schema' or 'structural_tag'"
    )


def wishes_of(
    body: SharedBody,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    limit_name: str,
    echoed_logprobs: int | None = None,
) -> SamplingWishes:
    """The sampling part of a request. `echoed_logprobs`: of an echoed prompt, where the request asks for none of the answer."""
    structured = body.structured_outputs
    if body.response_format is not None:
        # Two kinds of constraint are refused by render, wherever they were said.
        structured = {**(structured or {}), **(read_response_format(body.response_format) or {})} or structured
    prompt_logprobs = body.prompt_logprobs
    if body.echo and prompt_logprobs is None:
        prompt_logprobs = echoed_logprobs if logprobs is None else logprobs
    bias: dict[int, float] | None = None
    if body.logit_bias is not None:
        try:
            bias = read_logit_bias(body.logit_bias)
        except Unfit as e:
            raise BadRequest(f"logit_bias: {e}", "logit_bias") from None
    return SamplingWishes(
        n=body.n,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        max_tokens=max_tokens,
        limit_name=limit_name,
        min_tokens=body.min_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=body.logprob_token_ids,
        logit_bias=bias,
        allowed_token_ids=body.allowed_token_ids,
        bad_words=body.bad_words,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        structured_outputs=structured,
        thinking_token_budget=body.thinking_token_budget,
        repetition_detection=body.repetition_detection,
        stream_interval=body.stream_interval,
        extra_args=body.vllm_xargs,
    )


def options_of(body: SharedBody, *, add_special_tokens: bool) -> RequestOptions:
    """Everything of a request that is neither conversation nor sampling."""
    return RequestOptions(
        model=body.model,
        request_id=body.request_id,
        stream=body.stream,
        stream_options=body.stream_options,
        echo=body.echo,
        add_special_tokens=add_special_tokens,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
        return_token_ids=body.return_token_ids,
        return_token_offsets=body.return_token_offsets,
        return_tokens_as_token_ids=body.return_tokens_as_token_ids,
        return_prompt_text=body.return_prompt_text,
        return_assistant_tokens_mask=body.return_assistant_tokens_mask,
        return_spans=body.return_spans,
        return_derender_state=body.return_derender_state,
        user=body.user,
        session_id=body.session_id,
        cache_salt=body.cache_salt,
        priority=body.priority,
        kv_transfer_params=body.kv_transfer_params,
        ec_transfer_params=body.ec_transfer_params,
    )


def make_request_id(prefix: str, options: RequestOptions, traced: str | None) -> str:
    """A request's id: after the caller's X-Request-Id, else the id in its body, else chance."""
    return f"{prefix}{traced or options.request_id or token_hex(8)}"


def read_text(value: Any, path: str) -> str:
    """A string, or the error that names its place."""
    if not isinstance(value, str):
        raise codec.invalid(path, "Input should be a valid string")
    return value
