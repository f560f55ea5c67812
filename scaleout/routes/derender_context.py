"""What a derender request brings along beside the engine's output: its request, the prompt's ids, counts, a carried state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from scaleout import codec
from scaleout.codec import Unfit, dumps
from scaleout.core import AnswerHead, ChatRequest, GenerateChunk, Json
from scaleout.core.media import ABSENT
from scaleout.derender.state import MAX_COUNT
from scaleout.dialects import Dialect, Request
from scaleout.errors import BadRequest
from scaleout.pipeline import Front, Stages
from scaleout.pipeline.derendering import StreamState, load_stream_state
from scaleout.result_wire import read_generate_chunk

Body = Mapping[str, Json]


def read_text(body: Body, key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise codec.invalid(f"body.{key}", "Input should be a valid string")
    return value


def read_context(stages: Stages, dialect: Dialect, body: Body, key: str) -> Request | None:
    """The original request, where it was sent along. A server told to parse cannot do without."""
    given = body.get(key)
    if given is None:
        if dialect.NAME != "completions" and (stages.config.tool_call_parser or stages.config.reasoning_parser):
            raise BadRequest(
                f"{key} is required when a tool or reasoning parser is configured because plain detokenization "
                "would leak raw parser markup into content.",
                f"body.{key}",
            )
        return None
    if not isinstance(given, dict):
        raise codec.invalid(f"body.{key}", "Input should be a valid dictionary")
    try:
        return dialect.parse(given)
    except BadRequest as error:
        if error.param is not None:
            error.param = f"body.{key}.{error.param.removeprefix('body.')}"
        error.message = error.message.replace("\n  body.", f"\n  body.{key}.")
        raise


def recover_prompt(front: Front, request: Request | None) -> Sequence[int] | None:
    """The prompt's ids from its request: without them nobody can tell whether the template has opened a thought.

    Media stay away: each is one placeholder, since only the prompt's end matters here.
    """
    if isinstance(request, ChatRequest) and front.derenderer.format is not None:
        return front.render(request, "", ABSENT)[0].token_ids
    return None


def read_state(stages: Stages, front: Front, dialect: Dialect, carried: Json) -> StreamState:
    """A state that came back, within its bound. Raises `BadRequest`, `BadState`, `StaleState`."""
    most = stages.config.limits.max_state_bytes
    size = len(dumps(carried))
    if size > most:
        raise BadRequest(f"stream_state is {size} bytes long, over the limit of {most}", "body.stream_state")
    return load_stream_state(front, dialect, carried)


def read_chunk(front: Front, given: Json, path: str) -> GenerateChunk:
    """One event of an engine's stream, within all bounds before any of it is decoded. Raises `BadRequest` with the path."""
    for i, choice in enumerate(_list_in(given, "choices")):
        # The raw lists first: reading millions of ids one by one is work already.
        count = len(_list_in(choice, "token_ids"))
        front.bounds.check_length(count, f"token_ids length ({count}) in choice {i}", f"{path}.choices.{i}.token_ids")
    chunk = read_generate_chunk(given, path)
    name = chunk.request_id or ""
    front.bounds.check_choices(chunk.choices, name, path)
    front.bounds.check_prompt_logprobs(chunk.prompt_logprobs, name, path)
    if chunk.prompt_token_ids is not None:
        front.bounds.check_ids(chunk.prompt_token_ids, "prompt_token_ids length ({})", f"{path}.prompt_token_ids")
    return chunk


def check_total(front: Front, state: StreamState, delta: int, path: str) -> None:
    """A choice is no longer than a context, however many chunks it comes in. `delta`: how many ids come now."""
    if state.derender.tokens + delta > front.max_model_len:
        raise BadRequest(
            f"output_token_ids length ({state.derender.tokens}) plus delta ({delta}) "
            f"exceeds max_model_len ({front.max_model_len}).",
            path,
        )


def _list_in(value: Json, key: str) -> list[Json]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def read_count(given: Json, path: str) -> int | None:
    if given is None:
        return None
    try:
        count = codec.read_int(given)
    except Unfit as e:
        raise codec.invalid(path, str(e)) from None
    if not 0 <= count < MAX_COUNT:
        raise codec.invalid(path, "Input should be between 0 and 2^53")
    return count


def read_prompt_ids(front: Front, given: Json, path: str, what: str) -> Sequence[int] | None:
    if given is None:
        return None
    if isinstance(given, list):
        front.bounds.check_length(len(given), what.format(len(given)), path)
    try:
        ids = codec.read_ids(given)
    except Unfit as e:
        raise codec.invalid(path + e.path, str(e)) from None
    front.bounds.check_ids(ids, what, path)
    return ids


def with_ids(head: AnswerHead, ids: Sequence[int] | None) -> AnswerHead:
    return head if ids is None else evolve(head, prompt_token_ids=ids)
