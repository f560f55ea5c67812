"""OpenAI responses request bodies → ChatRequest (CONTRACT 2.7, 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define, evolve, fields

from scaleout import codec
from scaleout.codec import Unfit, invalid
from scaleout.core import ChatRequest, Json, StreamOptions
from scaleout.dialects.fields import SharedBody, check_shared, field_names, options_of, prepare_shared, wishes_of
from scaleout.dialects.responses_items import read_input
from scaleout.dialects.responses_tools import read_choice, read_tools
from scaleout.errors import BadRequest

MAX_STOPS = 4
LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]


@define(kw_only=True, slots=True)
class ReasoningConfig:
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


@define(kw_only=True, slots=True)
class ResponsesBody(SharedBody):
    """The fields of the responses API; `input`, `tools`, `tool_choice` and `text` are read by hand for the sake of their paths."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    include: Sequence[Include] = ()
    top_logprobs: int = 0
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool = True
    truncation: Literal["auto", "disabled"] = "disabled"
    background: bool = False
    store: bool = True
    metadata: Mapping[str, Json] | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    chat_template_kwargs: Mapping[str, Json] | None = None
    media_io_kwargs: Mapping[str, Json] | None = None
    mm_processor_kwargs: Mapping[str, Json] | None = None
    mm_payload: Literal["tensors", "source", "none"] | None = None


# Of the fields that chat and completions share, those that this API has too. Others are passed over like any unknown field.
_SHARED = frozenset(
    (
        *("model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "structured_outputs"),
        *("skip_special_tokens", "include_stop_str_in_output", "vllm_xargs", "request_id", "stream", "user"),
        *("cache_salt", "priority", "kv_transfer_params", "ec_transfer_params"),
        *("return_assistant_tokens_mask", "return_spans", "return_derender_state"),
    )
)
_OWN = frozenset(a.name for a in fields(ResponsesBody)) - frozenset(a.name for a in fields(SharedBody))
READ = _SHARED | _OWN
"""Fields of the class that a body of this API can set."""


def _prepare_body(wire: dict[str, Json]) -> dict[str, Json]:
    values = prepare_shared({key: value for key, value in wire.items() if key in READ})
    if isinstance(values.get("stop"), list) and len(values["stop"]) > MAX_STOPS:
        raise Unfit(f"List should have at most {MAX_STOPS} items after validation, not {len(values['stop'])}", ".stop")
    for name in ("presence_penalty", "frequency_penalty"):
        if name in values and not -2 <= codec.read_member(values, name, codec.read_float) <= 2:
            raise Unfit("Input should be between -2 and 2", f".{name}")
    return values


codec.prepare(ReasoningConfig, codec.drop_nulls)
codec.prepare(ResponsesBody, _prepare_body)

FIELDS = field_names(ResponsesBody) | {
    "input",
    "tools",
    "tool_choice",
    "text",
    "previous_response_id",
    "prompt",
    "conversation",
}


def parse(body: Mapping[str, Json], history: Sequence[Json] | None = None) -> ChatRequest:
    """A request body as a `ChatRequest`. Raises `InvalidField` with the JSON path, `BadRequest` for rules between fields.

    `history`: the items that `previous_response_id` stands for; None where nobody knows them.
    """
    if body.get("input") is None:
        raise invalid("body.input", "Field required")
    given = codec.structure(body, ResponsesBody)
    _check(given, body, resumes=history is not None)
    structured = read_text_format(body.get("text"))
    if structured is not None and given.structured_outputs is not None:
        raise BadRequest(
            "Cannot specify both structured_outputs and text.format (parameter=structured_outputs)",
            "structured_outputs",
        )
    tools = read_tools(body.get("tools"))
    tool_choice, tools = read_choice(body.get("tool_choice"), body.get("tools"), tools)
    messages, unfinished = read_input(body["input"], given.instructions, history or ())
    if not messages:
        raise BadRequest("Cannot apply chat template to an empty conversation. Provide at least one message.", "input")
    logprobs = given.top_logprobs if LOGPROBS in given.include else None
    sampling = wishes_of(given, logprobs=logprobs, max_tokens=given.max_output_tokens, limit_name="max_output_tokens")
    mm_options = {
        name: value
        for name in ("media_io_kwargs", "mm_processor_kwargs", "mm_payload")
        if (value := getattr(given, name)) is not None
    }
    return ChatRequest(
        messages=messages,
        tools=tools or None,
        tool_choice=tool_choice,
        parallel_tool_calls=given.parallel_tool_calls,
        include_reasoning=given.include_reasoning,
        sampling=evolve(sampling, structured_outputs=structured or given.structured_outputs),
        options=evolve(
            options_of(given, add_special_tokens=False),
            truncate_prompt_tokens=-1 if given.truncation == "auto" else None,
            # The last event says what the answer has cost.
            stream_options=StreamOptions(include_usage=True) if given.stream else None,
        ),
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        chat_template_kwargs=given.chat_template_kwargs or {},
        reasoning_effort=given.reasoning.effort if given.reasoning is not None else None,
        mm_options=mm_options,
        echo=_echo(given, body),
    )


def _check(given: ResponsesBody, body: Mapping[str, Json], resumes: bool) -> None:
    check_shared(given)
    if body.get("previous_response_id") is not None and not resumes:
        error = BadRequest(
            "previous_response_id is not supported by the stateless render endpoint.", "previous_response_id"
        )
        error.type = "invalid_request_error"
        raise error
    if body.get("conversation") is not None:
        # Unknown fields are ignored, but an answer without what was said before would be to another question.
        raise BadRequest("conversation is not supported: use previous_response_id or send the items", "conversation")
    if body.get("prompt") is not None:
        raise BadRequest("prompt template is not supported (parameter=prompt)", "prompt")
    if given.background and not given.store:
        raise BadRequest("background can only be used when `store` is true (parameter=background)", "background")
    if given.top_logprobs < -1:
        raise BadRequest("`top_logprobs` must be a positive value or -1.", "top_logprobs", given.top_logprobs)


def read_text_format(text: Json, path: str = "body.text") -> dict[str, Json] | None:
    """`text.format` as `structured_outputs`; None for plain text."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise invalid(path, "Input should be a valid dictionary")
    wanted = text.get("format")
    if wanted is None:
        return None
    if not isinstance(wanted, dict):
        raise invalid(f"{path}.format", "Input should be a valid dictionary")
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise invalid(f"{path}.format.type", "Input should be 'text', 'json_object' or 'json_schema'")
    for key, of, name in (("name", str, "string"), ("schema", dict, "dictionary")):
        if not isinstance(wanted.get(key), of):
            missing = wanted.get(key) is None
            raise invalid(f"{path}.format.{key}", "Field required" if missing else f"Input should be a valid {name}")
    return {"json": wanted["schema"]}


def _echo(given: ResponsesBody, body: Mapping[str, Json]) -> dict[str, Json]:
    """Fields that a response repeats, as they were sent."""
    return {
        "background": given.background,
        "frequency_penalty": given.frequency_penalty,
        "instructions": given.instructions,
        "max_output_tokens": given.max_output_tokens,
        "max_tool_calls": given.max_tool_calls,
        "metadata": given.metadata,
        "parallel_tool_calls": given.parallel_tool_calls,
        "presence_penalty": given.presence_penalty,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning"),
        "service_tier": given.service_tier,
        "store": given.store,
        "temperature": given.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": given.top_logprobs if LOGPROBS in given.include else None,
        "top_p": given.top_p,
        "truncation": given.truncation,
        "user": given.user,
    }
