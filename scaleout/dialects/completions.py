"""OpenAI completions: request bodies → CompletionRequest, answers → `text_completion` objects and chunks (CONTRACT 2.5, 7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve

from scaleout import codec
from scaleout.codec import Unfit
from scaleout.core import (
    AnswerHead,
    ChoiceAnswer,
    ChoiceDelta,
    CompletionRequest,
    Content,
    DecodedPosition,
    Json,
    Usage,
)
from scaleout.dialects.dialect import Gather, Request
from scaleout.dialects.fields import (
    SharedBody,
    check_shared,
    field_names,
    make_request_id,
    options_of,
    prepare_shared,
    wishes_of,
)
from scaleout.errors import BadRequest
from scaleout.wire import write_usage

NAME = "completions"
PATH = "/v1/completions"
ID_PREFIX = "cmpl-"
NAMED_EVENTS = False
DEFAULT_MAX_TOKENS = 16


def name_request(wanted: Request, traced: str | None) -> str:
    return make_request_id(ID_PREFIX, wanted.options, traced)


@define(kw_only=True, slots=True)
class CompletionBody(SharedBody):
    logprobs: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True


codec.prepare(CompletionBody, prepare_shared)

FIELDS = field_names(CompletionBody) | {"prompt", "prompt_embeds"}


def parse(body: Mapping[str, Json]) -> CompletionRequest:
    """A request body as a `CompletionRequest`: one prompt or many, as text or ids. Raises `InvalidField`, `BadRequest`."""
    fields = codec.structure(body, CompletionBody)
    check_shared(fields)
    logprobs = fields.logprobs
    if logprobs is not None and logprobs < 0 and logprobs != -1:
        raise BadRequest("`logprobs` must be a positive value or -1.", "logprobs", logprobs)
    if fields.suffix is not None and fields.echo:
        raise BadRequest("Echo is unsupported with suffix.", "suffix")
    if body.get("prompt_embeds") is not None:
        raise BadRequest("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds")
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    echo_alone = fields.echo and max_tokens == 0
    if echo_alone:
        max_tokens = 1
    return CompletionRequest(
        prompts=read_prompts(body.get("prompt")),
        suffix=fields.suffix,
        sampling=wishes_of(fields, logprobs=logprobs, max_tokens=max_tokens, limit_name="max_tokens"),
        options=evolve(options_of(fields, add_special_tokens=fields.add_special_tokens), echo_alone=echo_alone),
    )


def read_prompts(value: Json) -> list[str | Sequence[int]]:
    """`prompt` in its four forms: text, texts, ids, lists of ids. Mixed lists are refused with the place of the odd item."""
    if value is None or value == "":
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise codec.invalid("body.prompt", "Input should be a string, a list of strings, ids, or lists of ids")
    if not value:
        raise BadRequest("You must pass at least one prompt", "prompt")
    first = value[0]
    if isinstance(first, str):
        for i, item in enumerate(value):
            if not isinstance(item, str):
                raise codec.invalid(f"body.prompt.{i}", "Input should be a valid string")
        return value
    if isinstance(first, list):
        return [_ids(item, f"body.prompt.{i}") for i, item in enumerate(value)]
    return [_ids(value, "body.prompt")]


def _ids(value: Json, path: str) -> list[int]:
    try:
        return codec.read_ids(value)
    except Unfit as e:
        raise codec.invalid(path + e.path, str(e)) from None


# ---------------------------------------------------------------------------------------------- answers


def response(head: AnswerHead, request: Request | None, answers: Sequence[ChoiceAnswer], usage: Usage) -> Json:
    """A whole `text_completion`, every key present."""
    show_ids = request is not None and request.options.return_token_ids
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [
            {
                "index": answer.index,
                "text": answer.content or "",
                "logprobs": _logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
                "token_ids": answer.token_ids if show_ids else None,
                "prompt_logprobs": answer.prompt_logprobs,
                "prompt_token_ids": answer.prompt_token_ids if show_ids else None,
                "routed_experts": None,
            }
            for answer in answers
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": write_usage(usage),
        "kv_transfer_params": head.kv_transfer_params,
        "ec_transfer_params": head.ec_transfer_params,
        "metrics": None,
    }


def _logprobs(positions: Sequence[DecodedPosition] | None) -> Json:
    if positions is None:
        return None
    return {
        "text_offset": [p.text_offset for p in positions],
        "token_logprobs": [p.sampled.logprob for p in positions],
        "tokens": [p.sampled.token for p in positions],
        "top_logprobs": [{one.token: one.logprob for one in p.top} or None for p in positions],
    }


def open_stream(request: Request | None) -> dict[str, Json]:
    """What the chunks of one choice must remember, as JSON."""
    return {"ids": True} if request is not None and request.options.return_token_ids else {}


def chunk(
    head: AnswerHead, carry: dict[str, Json], delta: ChoiceDelta | None, usage: Usage | None
) -> tuple[dict[str, Json], list[Json]]:
    """One streamed `text_completion`; `delta` None is the usage chunk. Returns the changed `carry` beside it."""
    wire: dict[str, Json] = {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [],
        "usage": None if usage is None else write_usage(usage),
        "system_fingerprint": None,
        "metrics": None,
    }
    if delta is None:
        return carry, [wire]
    show_ids = bool(carry.get("ids"))
    first_with_ids = show_ids and not carry.get("begun")
    wire["choices"] = [
        {
            "index": delta.index,
            "text": "".join(event.text for event in delta.events if type(event) is Content),
            "logprobs": _logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": head.prompt_token_ids if first_with_ids else None,
            "token_ids": delta.token_ids if show_ids else None,
        }
    ]
    return ({**carry, "begun": True} if first_with_ids else carry), [wire]


def says_something(delta: ChoiceDelta, carry: Mapping[str, Json]) -> bool:
    """Whether a chunk of this delta would carry anything: an empty one is not sent while text is held back."""
    return bool(delta.events or delta.finish_reason or delta.logprobs or (carry.get("ids") and delta.token_ids))


def gather(request: Request | None) -> Gather | None:
    """Chunks leave nothing open."""
    return None
