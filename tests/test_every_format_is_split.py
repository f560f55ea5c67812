"""Coupled equals split in every output format and every dialect: an engine says recorded answers, and both ways give the same bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from serving import Answer, Server, serving
from split import ask_split, events, ok

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.core import GenerateRequest, PromptInfo, TokenDelta
from scaleout.dialects import Dialect, messages, responses
from scaleout.generate.engine import Over
from scaleout.generate.options import EngineStats
from scaleout.routes.keys import STAGES
from tests.derender.piping import EVENT_STREAM, chunks_of, context_event, context_of, engine_stream
from tests.parsers.recorded import PARITY, families, records

pytestmark = pytest.mark.skipif(not PARITY.is_dir(), reason="the recorded answers of ../shared/parity are absent")

Json = Any
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAME = {"X-Request-Id": "same"}
IDS_IN_A_DELTA = 5
CHOICES = 3


@define
class Reciting:
    """An engine that says by heart: choice i says the i-th script, some ids at a time, the choices in turns."""

    scripts: Sequence[tuple[Sequence[int], str]]
    max_model_len: int
    vocab_size: int
    eos_token_ids: Sequence[int] = ()
    _stats: EngineStats = field(factory=EngineStats)

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        said = [0] * request.sampling_params.n
        prompt: PromptInfo | None = PromptInfo(request.token_ids, cached_tokens=1)
        running = list(range(request.sampling_params.n))
        while running:
            for index in list(running):
                ids, finish = self.scripts[index]
                piece = ids[said[index] : said[index] + IDS_IN_A_DELTA]
                said[index] += len(piece)
                over = said[index] == len(ids)
                yield TokenDelta(index, piece, None, finish if over else None, prompt=prompt)
                prompt = None
                if over:
                    running.remove(index)

    async def abort(self, request_ids: Sequence[str]) -> None:
        pass

    def health(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return self._stats

    async def close(self, grace: float = 0) -> None:
        pass


def answers(family: str) -> list[dict[str, Any]]:
    """One answer for each choice: the one with most calls, one with a thought if there is one, and one that went wrong."""
    said = sorted(records(family), key=lambda one: -len(one["expected"]["tool_calls"]))
    thought = next((one for one in said if one["expected"]["reasoning"]), said[len(said) // 2])
    return [said[0], thought, next((one for one in said if one["kind"] != "well-formed"), said[-1])]


@contextmanager
def reciting(folder: Path, family: str) -> Iterator[Server]:
    """Every route in one process, for the tokenizer and the format of a family."""
    entry = families()[family]
    config = ModeConfig(
        Mode.STANDARD,
        model=str(folder),
        served_model_names=("m",),
        scale_out=True,
        access_log=False,
        tokenizer_backend="hf",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
        special_tokens_in_content="allow",
        tool_call_parser=entry["tool_parser"],
        reasoning_parser=entry["reasoning_parser"],
        engine=EngineOptions(backend="echo"),
    )
    with serving(make_app(config)) as server:
        stages = server.app[STAGES]
        echo = stages.engine
        assert echo is not None
        scripts = [(one["token_ids"], one["finish"]) for one in answers(family)]
        stages.engine = Reciting(scripts, echo.max_model_len, echo.vocab_size, echo.eos_token_ids)
        yield server


def requests(family: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """A request of each dialect, and those of one with stop strings and with ids."""
    first = answers(family)[0]
    prompt, tools = first["prompt_tail"], first["tools"] or []
    ask = [{"role": "user", "content": prompt}]
    plain = [tool["function"] for tool in tools]
    chat: dict[str, Any] = {"messages": ask, "max_tokens": 2000, "n": CHOICES, "temperature": 1}
    if tools:
        chat |= {"tools": tools, "tool_choice": "auto"}
    claude = [{"name": one["name"], "input_schema": one["parameters"]} for one in plain]
    gpt = [{"type": "function", "name": one["name"], "parameters": one["parameters"], "strict": False} for one in plain]
    content = max((one["expected"]["content"] or "" for one in answers(family)), key=len)
    stop = content[len(content) // 2 :][:3] or "</"
    return {
        "chat": (CHAT, chat),
        "chat with a stop string": (CHAT, {**chat, "stop": [stop]}),
        "chat with ids": (CHAT, {**chat, "n": 1, "return_token_ids": True, "include_reasoning": False}),
        "chat, one call": (CHAT, {**chat, "n": 1, "parallel_tool_calls": False}),
        "completion": (COMPLETIONS, {"prompt": prompt, "max_tokens": 2000, "n": CHOICES, "temperature": 1}),
        "message": (messages.PATH, {"max_tokens": 2000, "messages": ask, "tools": claude}),
        "response": (responses.PATH, {"input": prompt, "tools": gpt, "request_id": "resp_same", "store": False}),
    }


def comparable(value: Json) -> str:
    """Without what names the second in which an answer was made."""
    return json.dumps(undated(value), ensure_ascii=False)


def undated(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: undated(one) for key, one in value.items() if key not in ("created", "created_at", "id")}
    return [undated(one) for one in value] if isinstance(value, list) else value


def named_events(answer: Answer) -> list[Json]:
    assert answer.status == 200, answer.body
    blocks = answer.body.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(block.partition("data: ")[2]) for block in blocks]


DIALECT_OF: dict[str, Dialect] = {messages.PATH: messages, responses.PATH: responses}


def split_whole(server: Server, path: str, body: Json) -> Json:
    if path not in DIALECT_OF:
        return ask_split(server, server, path, body, "same")
    rendered = ok(server.post(f"{path}/render", body, SAME))
    context = context_of(path, body, rendered)
    return ok(
        server.post(
            f"{path}/derender", {**context, "generate_response": ok(server.post("/inference/v1/generate", rendered))}
        )
    )


def split_stream(server: Server, path: str, body: Json) -> list[Json]:
    """Chunk by chunk for one choice; over one connection for several."""
    dialect = DIALECT_OF.get(path)
    if dialect is None and body.get("n", 1) == 1:
        return ask_split(server, server, path, body, "same")
    rendered = ok(server.post(f"{path}/render", body, SAME))
    (rendered,) = rendered if isinstance(rendered, list) else [rendered]
    stream, context = engine_stream(server, rendered), context_of(path, body, rendered)
    if dialect is None:
        piped = server.ask("POST", f"{path}/derender", context_event(**context) + stream, EVENT_STREAM)
        return chunks_of(piped.body)
    state, told = None, []
    for chunk in chunks_of(stream):
        call = {"stream": True, "generate_chunk": chunk, "stream_state": state}
        answer = ok(server.post(f"{path}/derender", call if state else {**call, **context}))
        state = answer["stream_state"]
        told += answer["events"]
    complete = dialect.gather(dialect.parse(body)) or list
    return complete(told)


def check_whole(server: Server, path: str, body: Json) -> None:
    assert comparable(ok(server.post(path, body, SAME))) == comparable(split_whole(server, path, body))


def check_stream(server: Server, path: str, body: Json) -> None:
    body = {**body, "stream": True}
    if path not in DIALECT_OF and "stop" not in body:
        body["stream_options"] = {"include_usage": True}
    answer = server.post(path, body, SAME)
    coupled = named_events(answer) if path in DIALECT_OF else events(answer)
    told = split_stream(server, path, body)
    if path in DIALECT_OF:
        assert [comparable(one) for one in coupled] == [comparable(one) for one in told]
        return
    said = [one for one in told if says_something(one)]
    for index in (*range(body.get("n", 1)), None):  # None: the usage
        mine, theirs = (
            [
                comparable(one)
                for one in chunks
                if [c["index"] for c in one["choices"]] == ([index] if index is not None else [])
            ]
            for chunks in (coupled, said)
        )
        assert mine == theirs


def says_something(chunk: Json) -> bool:
    """Chunks without any news are not sent by a coupled server, which holds text back as a split one does."""
    for choice in chunk["choices"]:
        delta = choice.get("delta") or {"text": choice.get("text")}
        if not (any(delta.values()) or choice["finish_reason"] or choice["logprobs"] or choice["token_ids"]):
            return False
    return True


@pytest.mark.parametrize("family", families())
def test_both_ways_say_the_same(family: str, family_tokenizer: Callable[[str], Path]) -> None:
    """Every dialect, whole and streamed, one choice and three, with and without stop strings."""
    with reciting(family_tokenizer(family), family) as server:
        for path, request in requests(family).values():
            body = {"model": "m", **request}
            check_whole(server, path, body)
            check_stream(server, path, body)
        # That the recorded answers came through, and not three times nothing.
        path, request = requests(family)["chat"]
        choices = ok(server.post(path, {"model": "m", **request}))["choices"]
        wanted = answers(family)[0]["expected"]
        calls = [call["function"]["name"] for call in choices[0]["message"].get("tool_calls") or ()]
        assert calls == [call["name"] for call in wanted["tool_calls"]]
        assert len(choices) == CHOICES


def test_usage_knows_what_was_cached_also_where_a_stop_string_ends_the_answer(
    family_tokenizer: Callable[[str], Path],
) -> None:
    family = next(iter(families()))
    with reciting(family_tokenizer(family), family) as server:
        path, request = requests(family)["chat with a stop string"]
        answer = ok(server.post(path, {"model": "m", **request}))
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
