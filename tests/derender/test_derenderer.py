"""The derender stage on real tokenizers: laws over any ids and any cutting, and what beside the text must come out right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import (
    ChatRequest,
    ChoiceAnswer,
    ChoiceDelta,
    CompletionRequest,
    Content,
    PositionLogprobs,
    PromptInfo,
    Reasoning,
    RequestOptions,
    SamplingWishes,
    TokenDelta,
    TokenLogprob,
    ToolChoice,
    ToolStart,
)
from scaleout.derender import Derenderer, fold
from scaleout.errors import BadState, StaleState
from tests.derender.recorded import chat_request, open_derenderer

TOOLS = [{"function": {"name": "f", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"q": "x"}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen(family_tokenizer: Callable[[str], Path]) -> Derenderer:
    return open_derenderer(family_tokenizer("qwen3"), "hermes", "think")


@pytest.fixture(scope="module")
def plain(smollm2_folder: Path) -> Derenderer:
    return open_derenderer(smollm2_folder, None, None)


def chat(tools: Any = TOOLS, **options: Any) -> ChatRequest:
    return chat_request({"tools": tools}, **options)


def ids_of(derenderer: Derenderer, text: str) -> list[int]:
    return derenderer.tokenizer.encode(text, add_special_tokens=False)


def with_logprobs(ids: Sequence[int]) -> list[PositionLogprobs]:
    return [PositionLogprobs(TokenLogprob(i, -0.5, 1), [TokenLogprob(i, -0.5, 1)]) for i in ids]


def run(
    derenderer: Derenderer,
    request: ChatRequest | CompletionRequest | None,
    pieces: Sequence[Sequence[int]],
    finish: str = "stop",
    stop_reason: int | None = None,
    prompt: Sequence[int] = (),
    logprobs: bool = False,
    through_json: bool = True,
) -> tuple[ChoiceAnswer, list[ChoiceDelta]]:
    state = derenderer.begin(request, prompt, "seed")
    deltas = []
    for i, ids in enumerate(pieces):
        last = i == len(pieces) - 1
        given = TokenDelta(0, ids, with_logprobs(ids) if logprobs else None)
        if last:
            given = evolve(given, finish_reason=finish, stop_reason=stop_reason)
        deltas.append(derenderer.feed(state, given))
        if through_json:
            state = derenderer.load(orjson.loads(orjson.dumps(derenderer.dump(state))))
    return fold(deltas), deltas


def cut(ids: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(place % (len(ids) + 1) for place in places), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


@given(st.data())
def test_any_cutting_gives_one_answer(qwen: Derenderer, data: st.DataObject) -> None:
    words = st.sampled_from(
        ["<think>", "</think>", CALL, "<tool_call>", "naïve 🙂", "삼겹살", "\n", " a b", "END", "<|im_end|>"]
    )
    text = "".join(data.draw(st.lists(words, max_size=8)))
    random_ids = data.draw(st.lists(st.integers(0, qwen.tokenizer.vocab_size - 1), max_size=6))
    ids = [*ids_of(qwen, text), *random_ids]
    stops = data.draw(st.sampled_from([(), ("END",), ("a b", "🙂")]))
    request = chat(sampling={"stop": stops})
    places = data.draw(st.lists(st.integers(0, 500), max_size=6))
    whole, _ = run(qwen, request, [ids], logprobs=True, through_json=False)
    pieces, deltas = run(qwen, request, cut(ids, places), logprobs=True)
    singles, _ = run(qwen, request, [[one] for one in ids] or [[]], logprobs=True)
    assert whole == pieces == singles
    assert "<|im_end|>" not in (whole.content or "")
    for end in range(len(deltas)):
        so_far = fold(deltas[:end])
        assert (whole.content or "").startswith(so_far.content or "")
        assert (whole.reasoning or "").startswith(so_far.reasoning or "")


@given(st.lists(st.integers(0, 49151), max_size=12), st.lists(st.integers(0, 20), max_size=4), st.booleans())
def test_plain_text_equals_the_tokenizers_own(plain: Derenderer, ids: list[int], places: list[int], skip: bool) -> None:
    request = CompletionRequest(["x"], sampling=SamplingWishes(skip_special_tokens=skip))
    answer, _ = run(plain, request, cut(ids, places), finish="length")
    shown = [i for i in ids if not skip or i not in plain.tokenizer.special_ids]
    # Unfinished characters differ only in how many replacement marks stand for them.
    expected = plain.tokenizer.decode(shown, skip_special_tokens=False)
    assert (answer.content or "").replace("\ufffd", "") == expected.replace("\ufffd", "")


def test_the_end_token_is_never_text(qwen: Derenderer, plain: Derenderer) -> None:
    ids = [*ids_of(qwen, "Hello"), qwen.tokenizer.eos_id]
    for skip in (True, False):
        answer, _ = run(qwen, chat(sampling={"skip_special_tokens": skip}), [ids])
        assert answer.content == "Hello"
        assert answer.token_ids == ids
    ids = [*ids_of(plain, "Hello"), 2]
    answer, _ = run(plain, chat(sampling={"skip_special_tokens": False}), [ids])
    assert answer.content == "Hello"


def test_a_stop_token_of_the_request_is_no_text(plain: Derenderer) -> None:
    ids = ids_of(plain, "one two three")
    answer, _ = run(plain, chat(), [ids], stop_reason=ids[-1])
    assert answer.content == "one two"
    assert answer.stop_reason == ids[-1]


def test_the_end_token_is_no_stop_reason(plain: Derenderer) -> None:
    answer, _ = run(plain, chat(), [[*ids_of(plain, "hi"), 2]], stop_reason=2)
    assert answer.stop_reason is None


def test_the_prompt_decides_where_the_answer_starts(qwen: Derenderer) -> None:
    ids = ids_of(qwen, "First I\n</think>\n\nDone")
    opened = ids_of(qwen, "<|im_start|>assistant\n<think>\n")
    closed = ids_of(qwen, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    answer, _ = run(qwen, chat(), [ids], prompt=opened)
    assert (answer.reasoning, answer.content) == ("First I", "Done")
    answer, _ = run(qwen, chat(), [ids_of(qwen, "Done")], prompt=closed)
    assert (answer.reasoning, answer.content) == (None, "Done")
    assert qwen.thought_is_over(opened) is False
    assert qwen.thought_is_over(closed) is True


def test_calls_have_stable_ids_and_change_only_a_stop(qwen: Derenderer) -> None:
    ids = ids_of(qwen, CALL)
    first, _ = run(qwen, chat(), [ids])
    again, _ = run(qwen, chat(), [[one] for one in ids])
    assert first.tool_calls == again.tool_calls
    assert first.finish_reason == "tool_calls"
    cut_off, _ = run(qwen, chat(), [ids[:-4]], finish="length")
    assert cut_off.finish_reason == "length"


@pytest.mark.parametrize("request_", [chat(tools=None), evolve(chat(), tool_choice=ToolChoice("none")), chat(tools=[])])
def test_without_tools_call_shaped_text_is_content(qwen: Derenderer, request_: ChatRequest) -> None:
    answer, _ = run(qwen, request_, [ids_of(qwen, CALL)])
    assert answer.content == CALL
    assert answer.tool_calls == []
    assert answer.finish_reason == "stop"


def test_one_call_where_only_one_is_wanted(qwen: Derenderer) -> None:
    answer, deltas = run(qwen, chat(parallel_tool_calls=False), [ids_of(qwen, CALL + "\n" + CALL)])
    assert len(answer.tool_calls) == 1
    assert sum(isinstance(event, ToolStart) for delta in deltas for event in delta.events) == 1


def test_hidden_reasoning_stays_hidden(qwen: Derenderer) -> None:
    ids = ids_of(qwen, "<think>secret</think>Hi")
    answer, deltas = run(qwen, chat(include_reasoning=False), [[one] for one in ids], logprobs=True)
    assert (answer.reasoning, answer.content) == (None, "Hi")
    assert not any(isinstance(event, Reasoning) for delta in deltas for event in delta.events)
    assert answer.token_ids == ids_of(qwen, "Hi")
    assert answer.logprobs is not None
    assert "".join(position.sampled.token for position in answer.logprobs) == "Hi"
    assert (answer.sampled, answer.reasoning_tokens) == (len(ids), len(ids) - 1)


def test_stop_strings_sleep_in_thoughts_and_count_what_was_sampled(qwen: Derenderer) -> None:
    ids = ids_of(qwen, "We reach END? yes</think>Answer END tail and more")
    opened = ids_of(qwen, "<|im_start|>assistant\n<think>\n")
    answer, _ = run(qwen, chat(sampling={"stop": ["END"]}), [ids], prompt=opened)
    assert (answer.reasoning, answer.content) == ("We reach END? yes", "Answer ")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "END")
    assert qwen.tokenizer.decode(answer.token_ids, skip_special_tokens=False).endswith("END")


def test_characters_over_several_ids(plain: Derenderer) -> None:
    ids = ids_of(plain, " hi🙂!")
    answer, deltas = run(plain, chat(), [[one] for one in ids], logprobs=True)
    assert answer.content == " hi🙂!"
    assert "\ufffd" not in "".join(e.text for d in deltas for e in d.events if isinstance(e, Content))
    assert answer.logprobs is not None
    assert b"".join(p.sampled.bytes or b"" for p in answer.logprobs) == " hi🙂!".encode()
    assert "".join(p.sampled.token for p in answer.logprobs) == " hi🙂!"
    assert [p.text_offset for p in answer.logprobs] == [
        sum(len(q.sampled.token) for q in answer.logprobs[:i]) for i in range(len(ids))
    ]
    broken, _ = run(plain, chat(), [[one] for one in ids[:-2]], finish="length")
    assert broken.content == " hi\ufffd"


def test_echo_begins_the_answer(plain: Derenderer) -> None:
    prompt, ids = ids_of(plain, "One two"), ids_of(plain, " three")
    request = CompletionRequest(["One two"], options=RequestOptions(echo=True))
    state = plain.begin(request, prompt, "")
    given_logprobs = [None, *({i: TokenLogprob(i, -1.0, 1)} for i in prompt[1:])]
    delta = TokenDelta(0, ids, with_logprobs(ids), "length", prompt=PromptInfo(logprobs=given_logprobs))
    answer = fold([plain.feed(state, delta)])
    assert answer.content == "One two three"
    assert answer.logprobs is not None
    assert [p.sampled.logprob for p in answer.logprobs] == [None, -1.0, -0.5]
    assert [p.text_offset for p in answer.logprobs] == [0, 3, 7]


def test_echo_alone_shows_nothing_of_what_was_sampled(plain: Derenderer) -> None:
    prompt, ids = ids_of(plain, "One two"), ids_of(plain, " three")
    request = CompletionRequest(["One two"], options=RequestOptions(echo=True, echo_alone=True))
    state = plain.load(plain.dump(plain.begin(request, prompt, "")))
    given_logprobs = [None, *({i: TokenLogprob(i, -1.0, 1)} for i in prompt[1:])]
    delta = TokenDelta(0, ids, with_logprobs(ids), "stop", ids[0], prompt=PromptInfo(logprobs=given_logprobs))
    answer = fold([plain.feed(state, delta)])
    assert (answer.content, answer.finish_reason, answer.stop_reason) == ("One two", "length", None)
    assert answer.logprobs is not None
    assert [p.sampled.token for p in answer.logprobs] == ["One", " two"]
    assert (answer.token_ids, answer.sampled, state.tokens) == ([], 1, 1)


def test_nothing_comes_after_the_end(plain: Derenderer) -> None:
    state = plain.begin(chat(), (), "")
    plain.feed(state, TokenDelta(0, ids_of(plain, "Hi"), finish_reason="stop"))
    assert plain.feed(state, TokenDelta(0, ids_of(plain, "more"), finish_reason="stop")) == ChoiceDelta(0)


# ---------------------------------------------------------------------------------------------- states from outside


@given(st.data())
def test_a_tampered_state_is_refused_or_works(qwen: Derenderer, data: st.DataObject) -> None:
    state = qwen.begin(chat(sampling={"stop": ["END"]}), (), "seed")
    qwen.feed(state, TokenDelta(0, ids_of(qwen, "Well <tool_call>{"), None))
    wire = orjson.loads(orjson.dumps(qwen.dump(state)))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**60) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
    place: Any = wire
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(place, dict) or not place:
            break
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and data.draw(st.booleans()):
            place = place[key]
        else:
            place[key] = data.draw(junk)
    try:
        loaded = qwen.load(wire)
    except BadState:
        return
    answer = fold([qwen.feed(loaded, TokenDelta(0, ids_of(qwen, "more text"), finish_reason="stop"))])
    assert isinstance(answer, ChoiceAnswer)


def test_a_state_of_another_model_is_stale(qwen: Derenderer, plain: Derenderer) -> None:
    wire = plain.dump(plain.begin(None, (), ""))
    with pytest.raises(StaleState):
        qwen.load(wire)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"v": 1}])
def test_what_is_no_state_is_refused(qwen: Derenderer, value: Any) -> None:
    with pytest.raises(BadState):
        qwen.load(value)
