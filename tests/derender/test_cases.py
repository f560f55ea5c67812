"""Reported cases of stop strings and split characters (C20, C21), as the cases file tells them, one id group after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from serving import Server

from scaleout import parsers
from scaleout.core import ChatRequest, ChoiceDelta, Content, Message, Reasoning, SamplingWishes, TokenDelta
from scaleout.derender import Derenderer, fold
from scaleout.parsers import FORMATS
from scaleout.routes.keys import STAGES
from tests.derender.piping import chunks_of
from tests.tokenizer.test_decode_window import byte_vocabulary

Json = Any


@pytest.fixture(scope="module")
def letters() -> Derenderer:
    """A vocabulary of single bytes and a few groups of them."""
    tokenizer = byte_vocabulary()
    return Derenderer(tokenizer, parsers.bind(FORMATS["think"], tokenizer.added_tokens.values()), [])


def runs_of(shared: Path, case: str) -> list[Json]:
    section = (shared / "cases" / "CASES.md").read_text().split(f"## {case} ")[1].split("\n## ")[0]
    runs: list[Json] = json.loads(section.split("Runs")[1].split("```json\n")[1].split("```")[0])
    return runs


def text_of(delta: ChoiceDelta) -> str:
    return "".join(event.text for event in delta.events if isinstance(event, Content))


@pytest.mark.parametrize("number", range(4))
def test_stop_strings_belong_to_the_front_end(letters: Derenderer, shared_folder: Path, number: int) -> None:
    run = runs_of(shared_folder, "C20")[number]
    expected = run["expect"]
    include = run.get("include_stop_str_in_output", False)
    wishes = SamplingWishes(stop=run["stop"], include_stop_str_in_output=include)

    def ids_of(text: str) -> list[int]:
        return letters.tokenizer.encode(text, add_special_tokens=False)

    state = letters.begin(ChatRequest([Message("user", "x")], sampling=wishes), ids_of(run.get("prompt_tail", "")), "")
    given = [ids_of(chunk) for chunk in run["chunks"]]
    deltas = []
    for n, ids in enumerate(given):
        last = run.get("engine_finish") if n == len(given) - 1 else None
        deltas.append(letters.feed(state, TokenDelta(0, ids, finish_reason=last)))
    assert not any(
        event.text == "" for delta in deltas for event in delta.events if isinstance(event, Content | Reasoning)
    )
    answer = fold(deltas)
    assert (answer.reasoning, answer.content) == (expected.get("reasoning"), expected["content"])
    assert (answer.finish_reason, answer.stop_reason) == (expected["finish_reason"], expected["stop_reason"])
    said = ""
    for delta in deltas:
        said += text_of(delta)
        assert expected["content"].startswith(said)
    text = "".join(run["chunks"])
    after_thought = text.find("</think>") + 1
    end = text.find(run["stop"][0], after_thought) + len(run["stop"][0]) if expected["stop_reason"] else len(text)
    assert answer.sampled == state.tokens == len(ids_of(text[:end]))


@pytest.mark.parametrize("number", range(3))
def test_characters_wait_for_their_last_byte(letters: Derenderer, shared_folder: Path, number: int) -> None:
    run = runs_of(shared_folder, "C21")[number]
    request = ChatRequest([Message("user", "x")])
    finish = run.get("finish", "stop")
    state = letters.begin(request, (), "")
    deltas = []
    for n, one in enumerate(run["ids"]):
        last = finish if n == len(run["ids"]) - 1 else None
        deltas.append(letters.feed(state, TokenDelta(0, [one], finish_reason=last)))
    assert [text_of(delta) or None for delta in deltas] == run["deltas"]
    whole = fold([letters.feed(letters.begin(request, (), ""), TokenDelta(0, run["ids"], finish_reason=finish))])
    assert whole.content == run["text"]


@pytest.mark.parametrize("streaming", [False, True])
def test_the_engine_stops_where_the_answer_does(server: Server, streaming: bool) -> None:
    """The engine is told of no stop string, and is not left running behind one."""
    engine = server.app[STAGES].engine
    assert engine is not None
    before = engine.stats().generated_tokens
    said = "one two STOP" + " and on" * 400
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": 1000, "stop": ["STOP"], "stream": streaming}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status == 200
    last = chunks_of(answer.body)[-1] if streaming else answer.json
    assert last["choices"][0]["stop_reason"] == "STOP"
    assert engine.stats().running == 0
    assert engine.stats().generated_tokens - before < 20
