"""Reported cases (the ids are those of the cases file) whose other half is a server: rendering, finish reasons, hostile values."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.core import ChatRequest, Message, RequestOptions, TokenDelta, Tool, ToolChoice
from scaleout.routes.keys import STAGES
from scaleout.tokenizer import Tokenizer
from tests.derender.recorded import open_derenderer

Json = Any
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]

C23_TEMPLATE = (
    "{% for m in messages %}\n[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}<call {{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v | tojson }}{% endfor %}>{% endfor %}{{ '\\n' }}\n{%- endfor %}"
)
C08_TEMPLATE = (
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}{% endfor %}"
    "{{ m.tool_call_id or '' }};{% endfor %}"
)
BILLION = "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}x{% endfor %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def open_server(tiny_model: Callable[..., Path]) -> Callable[..., Any]:
    """`open_server(**settings)`: every route in one process, and an engine that repeats the prompt."""

    def start(model: Path | None = None, **settings: Json) -> Any:
        config = ModeConfig(
            Mode.STANDARD,
            model=str(model or tiny_model("qwen3")),
            served_model_names=("m",),
            scale_out=True,
            access_log=False,
            tokenizer_backend="hf",
            engine=EngineOptions(backend="echo"),
            **settings,
        )
        return serving(make_app(config))

    return start


@pytest.fixture(scope="module")
def server(open_server: Callable[..., Any]) -> Iterator[Server]:
    with open_server() as running:
        yield running


def ok(server: Server, path: str, body: Json) -> Json:
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    return answer.json


def prompt_of(server: Server, messages: Json, **more: Json) -> str:
    rendered = ok(server, f"{CHAT}/render", {"messages": messages, **more})
    text: str = ok(server, "/detokenize", {"tokens": rendered["token_ids"]})["prompt"]
    return text


def call(arguments: Json, id: str = "c1", name: str = "lookup") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


# ---------------------------------------------------------------------------------------------- C23, C08: calls in the history


def test_c23_arguments_in_the_history_are_objects_for_the_template(open_server: Callable[..., Any]) -> None:
    given = '{"city": "Paris", "fresh": false, "limit": null, "r": 2.0}'

    def talk(arguments: Json) -> Json:
        turn = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
        return [
            {"role": "user", "content": "Look up Paris"},
            turn,
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]

    wanted = '[user]Look up Paris\n[assistant]<call lookup city="Paris" fresh=false limit=null r=2.0>\n[tool]ok\n'
    with open_server(chat_template=C23_TEMPLATE) as server:
        assert prompt_of(server, talk(given)) == wanted
        assert prompt_of(server, talk(json.loads(given))) == wanted
        assert "[assistant]<call lookup>\n" in prompt_of(server, talk(""))
        refused = server.post(f"{CHAT}/render", {"messages": talk("not json")})
        assert refused.status == 400
        assert refused.error["param"] == "body.messages.1.tool_calls.0.function.arguments"
        assert "messages[1].tool_calls[0]" in refused.error["message"]


def test_c08_ids_of_calls_come_back_as_they_were(open_server: Callable[..., Any]) -> None:
    ids = ["functions.get_weather:0", "functions.get_weather:1"]
    calls = [
        call(json.dumps({"city": city}), id, "get_weather") for city, id in zip(("Oslo", "Rome"), ids, strict=True)
    ]
    messages = [
        *USER,
        {"role": "assistant", "content": "Checking.", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "content": "fine"} for id in ids),
    ]
    with open_server(chat_template=C08_TEMPLATE) as server:
        prompt = prompt_of(server, messages)
    for id in ids:
        assert prompt.count(id) == 2
        assert f"<|tool_call_begin|>{id}" in prompt
        assert f"fine{id};" in prompt


# ---------------------------------------------------------------------------------------------- C26: text like control tokens


def test_c26_only_the_template_writes_control_tokens(server: Server) -> None:
    ids = ok(server, f"{CHAT}/render", {"messages": [{"role": "user", "content": "<|im_end|>"}]})["token_ids"]
    assert ids == [151644, 872, 198, 27, 91, 318, 6213, 91, 29, 151645, 198, 151644, 77091, 198]


@pytest.mark.parametrize("add", [False, True])
def test_c26_the_start_token_comes_once(open_server: Callable[..., Any], tiny_model: Any, add: bool) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with open_server(tiny_model("llama2"), chat_template=template) as server:
        tokenizer = server.within(server.app[STAGES].front).tokenizer
        rendered = ok(server, f"{CHAT}/render", {"messages": USER, "add_special_tokens": add})
        assert rendered["token_ids"].count(tokenizer.bos_id) == 1
        assert rendered["token_ids"][0] == tokenizer.bos_id


# ---------------------------------------------------------------------------------------------- C09, C12, C15, C17: derendered

GATE = "<|channel|>analysis<|message|>Gate first.<|end|><|start|>assistant"
BODY = '<|constrain|>json<|message|>{"zone":"north"}<|call|>'
GATED = [
    f"{GATE}<|channel|>commentary to=functions.open_gate {BODY}",
    f"{GATE} to=functions.open_gate<|channel|>commentary {BODY}",
    f"{GATE}<|channel|>commentary<|channel|>commentary to=functions.open_gate {BODY}",
    "<|channel|>?? odd<|message|>Hi<|return|>",
]


def tool(name: str, **properties: Json) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def derendered(server: Server, ids: list[int], prompt: list[int], request: Json, finish: str) -> tuple[Json, Json]:
    """The answer in one piece, and folded from one id per call: message and finish reason."""
    chat = {"messages": USER, **request}

    def generated(some: list[int], finish: str | None) -> Json:
        return {"request_id": "r", "choices": [{"index": 0, "token_ids": some, "finish_reason": finish}]}

    body = {"chat_request": chat, "prompt_token_ids": prompt}
    (whole,) = ok(server, f"{CHAT}/derender", {**body, "generate_response": generated(ids, finish)})["choices"]
    folded: Json = {"content": "", "reasoning": "", "arguments": "", "name": ""}
    state, last = None, None
    for n, id in enumerate(ids):
        one = generated([id], finish if n == len(ids) - 1 else None)
        answer = ok(server, f"{CHAT}/derender", {**body, "stream": True, "generate_chunk": one, "stream_state": state})
        state = answer["stream_state"]
        for choice in answer["chunk"]["choices"]:
            delta, last = choice["delta"], choice["finish_reason"] or last
            folded["content"] += delta.get("content") or ""
            folded["reasoning"] += delta.get("reasoning") or ""
            for piece in delta.get("tool_calls") or ():
                folded["name"] += piece["function"].get("name") or ""
                folded["arguments"] += piece["function"].get("arguments") or ""
    message = whole["message"]
    calls = message.get("tool_calls") or [{"function": {"name": "", "arguments": ""}}]
    assert folded == {
        "content": message["content"] or "",
        "reasoning": message["reasoning"] or "",
        "name": calls[0]["function"]["name"],
        "arguments": calls[0]["function"]["arguments"],
    }
    assert whole["finish_reason"] == last
    return message, whole["finish_reason"]


def encoder(server: Server) -> Callable[[str], list[int]]:
    tokenizer: Tokenizer = server.within(server.app[STAGES].front).tokenizer
    return lambda text: tokenizer.encode(text, False)


@pytest.mark.parametrize("run", range(4))
def test_c09_a_header_that_is_slightly_off_costs_nothing(
    run: int, open_server: Callable[..., Any], family_tokenizer: Callable[[str], Path]
) -> None:
    with open_server(
        family_tokenizer("gpt_oss"),
        chat_template="{{ messages }}",
        tool_call_parser="openai",
        reasoning_parser="openai_gptoss",
    ) as server:
        ids = encoder(server)
        request = {"tools": [tool("open_gate", zone={"type": "string"})]}
        message, finish = derendered(server, ids(GATED[run]), ids("<|start|>assistant"), request, "stop")
        # It was derendered twice, whole and id by id, and each counts the header once.
        assert f"scaleout_repaired_headers_total {(0.0, 0.0, 2.0, 2.0)[run]}\n" in server.get("/metrics").body.decode()
    if run == 3:
        assert (message["content"], message["reasoning"], finish) == ("Hi", None, "stop")
    else:
        assert (message["content"], message["reasoning"], finish) == (None, "Gate first.", "tool_calls")
        (one,) = message["tool_calls"]
        assert (one["function"]["name"], json.loads(one["function"]["arguments"])) == ("open_gate", {"zone": "north"})


def test_c12_a_long_value_is_passed_on_with_its_ids(family_tokenizer: Callable[[str], Path]) -> None:
    derenderer = open_derenderer(family_tokenizer("deepseek_v4"), "deepseek_v4", "deepseek_v4")
    parameters = {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
        "required": ["command", "timeout"],
    }
    request = ChatRequest(
        [Message("user", "x")],
        tools=[Tool("bash", None, parameters)],
        tool_choice=ToolChoice("auto"),
        options=RequestOptions(),
    )
    opening = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">'
    state = derenderer.begin(request, [], "r")
    before = derenderer.tokenizer.encode(opening, False)
    seen = "".join(_arguments(derenderer.feed(state, TokenDelta(0, before))))
    deltas = []
    for id in derenderer.tokenizer.encode("make test 2>&1; " * 640, False):
        deltas.append("".join(_arguments(derenderer.feed(state, TokenDelta(0, [id])))))
    first = next(n for n, delta in enumerate(deltas) if delta)
    assert first < 2
    assert len([delta for delta in deltas if delta]) >= 20
    assert "DSML" not in seen + "".join(deltas)


def _arguments(delta: Any) -> list[str]:
    return [event.text for event in delta.events if type(event).__name__ == "ToolArguments"]


@pytest.fixture(scope="module")
def thinking_server(open_server: Callable[..., Any]) -> Iterator[Server]:
    with open_server(tool_call_parser="hermes", reasoning_parser="qwen3") as running:
        yield running


def test_c15_a_cut_call_keeps_length(thinking_server: Server) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"q": "abc'
    request = {"tools": [tool("f", q={"type": "string"})]}
    message, finish = derendered(thinking_server, encoder(thinking_server)(text), [], request, "length")
    assert finish == "length"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"q": "abc'}


@pytest.mark.parametrize(
    ("text", "finish", "thought"), [("First I", "length", "First I"), ("All set.<|im_end|>", "stop", "All set.")]
)
def test_c17_a_cut_thought_stays_one(thinking_server: Server, text: str, finish: str, thought: str) -> None:
    ids = encoder(thinking_server)
    message, ended = derendered(thinking_server, ids(text), ids("<|im_start|>assistant\n<think>\n"), {}, finish)
    assert (message["reasoning"], message["content"], ended) == (thought, None, finish)


# ---------------------------------------------------------------------------------------------- C29: hostile or impossible values


DEEP = '{"type":"integer"}'
for _ in range(500):
    DEEP = f'{{"type":"object","properties":{{"a":{DEEP}}}}}'


GENERATE = "/inference/v1/generate"
VOCABULARY = 151936
HOSTILE: dict[int, tuple[str, Json, str]] = {
    1: (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
    2: (CHAT, {"n": 5_000_000}, "n"),
    3: (CHAT, {"logprobs": True, "top_logprobs": 1_000_000_000}, "top_logprobs"),
    4: (GENERATE, {"token_ids": [-1]}, "body.token_ids"),
    5: (GENERATE, {"token_ids": [VOCABULARY]}, "token_ids"),
    6: (GENERATE, {"token_ids": [5], "sampling_params": {"stop_token_ids": [VOCABULARY]}}, "stop_token_ids"),
    7: (GENERATE, {"token_ids": [5], "sampling_params": {"stop": ["END"]}}, "stop"),
    9: (f"{CHAT}/derender", {"prompt_tokens": 18446744073709551615}, "body.prompt_tokens"),
    10: (CHAT, {"structured_outputs": {"regex": "\0x"}}, "structured_outputs.regex"),
    11: (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "deep", "schema": "DEEP"}}}, ""),
    12: (CHAT, {}, "chat_template"),
}
"""By the number of the row. Ten million ids (8) are tried in `derender/test_over_http.py`."""


def hostile(row: int) -> tuple[str, bytes, str]:
    path, more, param = HOSTILE[row]
    request = {"model": "m", "messages": USER}
    if path == CHAT:
        return path, json.dumps({**request, **more}).replace('"DEEP"', DEEP).encode(), param
    if path == GENERATE:
        return path, json.dumps({"sampling_params": {"max_tokens": 1}, **more}).encode(), param
    generated = {"request_id": "r", "choices": [{"index": 0, "token_ids": [5], "finish_reason": "stop"}]}
    return path, json.dumps({"chat_request": request, "generate_response": generated, **more}).encode(), param


@pytest.fixture(scope="module")
def tokens_only(tiny_model: Callable[..., Path]) -> Iterator[Server]:
    config = ModeConfig(
        Mode.TOKENS_ONLY,
        model=str(tiny_model("qwen3")),
        served_model_names=("m",),
        access_log=False,
        engine=EngineOptions(backend="echo"),
    )
    with serving(make_app(config)) as running:
        yield running


@pytest.mark.parametrize("row", HOSTILE)
def test_c29_hostile_values_are_refused_at_once(
    row: int, server: Server, tokens_only: Server, open_server: Callable[..., Any]
) -> None:
    path, body, param = hostile(row)

    def check(asked: Server, fine: Server, paths: list[str]) -> None:
        for one in paths:
            # The best of a few: a server that has just started still checks its parts beside the serving.
            times = []
            for _ in range(3):
                began = time.process_time()
                answer = asked.post(one, body)
                times.append(time.process_time() - began)
            assert min(times) < (1 if row == 12 else 0.1)
            assert answer.status == 400, answer.body
            assert str(answer.error["param"]).startswith(param)
        assert ok(fine, f"{CHAT}/render", {"messages": USER})["token_ids"]

    if row == 12:
        with open_server(chat_template=BILLION) as looping:
            check(looping, server, [CHAT, f"{CHAT}/render"])
    elif path == GENERATE:
        check(tokens_only, tokens_only, [path])
    else:
        check(server, server, [path, f"{path}/render"] if path == CHAT else [path])


def test_c29_hostile_values_leave_no_memory_behind(server: Server, tokens_only: Server) -> None:
    """What leaks grows every time; what else happens in this process does not."""
    growth = []
    for _ in range(4):
        before = psutil.Process(os.getpid()).memory_info().rss
        for row in [row for row in HOSTILE for _ in range(5)]:
            path, body, _ = hostile(row)
            (tokens_only if path == GENERATE else server).post(path, body)
        growth.append(psutil.Process(os.getpid()).memory_info().rss - before)
    assert min(growth) < 5 << 20
