"""Masks and spans: which tokens the model would have written, proved or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaleout.core import ChatRequest, GenerateRequest, Message, RequestOptions, Tool, ToolCall, ToolChoice
from scaleout.errors import BadRequest
from scaleout.render import OutputFacts, Renderer
from scaleout.tokenizer import ModelFiles, Tokenizer

from .conftest import MODELS

U, A, S = "user", "assistant", "system"
TALK = [
    Message(S, "Be brief."),
    Message(U, "Hi"),
    Message(A, "Hello there"),
    Message(U, "2+2?"),
    Message(A, "4"),
    Message(U, "thanks"),
]
CALLS = [
    Message(U, "Weather?"),
    Message(A, "Checking.", tool_calls=[ToolCall("c", "get", {"city": "Oslo"})]),
    Message("tool", "12", tool_call_id="c"),
    Message(A, "12 degrees"),
    Message(U, "ok"),
]
ENDS = {
    "smollm2": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
    "gemma3": "<end_of_turn>",
}

Loaded = Callable[[str], tuple[ModelFiles, Tokenizer]]


def render(renderer: Renderer, messages: list[Message], **fields: Any) -> GenerateRequest:
    options = RequestOptions(return_assistant_tokens_mask=True, return_spans=True, **fields.pop("options", {}))
    return renderer.render_chat(ChatRequest(messages, options=options, **fields), request_id="r")


def sampled(tokenizer: Tokenizer, answer: GenerateRequest) -> list[str]:
    """The texts of the runs whose mask is 1."""
    assert answer.assistant_tokens_mask is not None
    assert len(answer.assistant_tokens_mask) == len(answer.token_ids)
    runs: list[list[int]] = [[]]
    for id, bit in zip(answer.token_ids, answer.assistant_tokens_mask, strict=True):
        if bit:
            runs[-1].append(id)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run, skip_special_tokens=False) for run in runs if run]


@pytest.mark.parametrize("name", sorted(ENDS))
def test_answers_are_masked_with_the_token_that_ends_them(
    name: str, loaded: Loaded, make_renderer: Callable[..., Renderer]
) -> None:
    answer = render(make_renderer(name), TALK)
    assert sampled(loaded(name)[1], answer) == [f"Hello there{ENDS[name]}", f"4{ENDS[name]}"]


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama3_1"])
def test_calls_are_the_models_own_words(name: str, loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    answer = render(make_renderer(name), CALLS)
    call = '\n<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call>' if name == "qwen3" else ""
    assert sampled(loaded(name)[1], answer) == [f"Checking.{call}{ENDS[name]}", f"12 degrees{ENDS[name]}"]


def test_thoughts_are_masked_where_the_template_shows_them(
    loaded: Loaded, make_renderer: Callable[..., Renderer]
) -> None:
    renderer, tokenizer = make_renderer("qwen3"), loaded("qwen3")[1]
    talk = [Message(U, "q"), Message(A, "done", reasoning="hm")]
    assert sampled(tokenizer, render(renderer, talk, add_generation_prompt=False)) == [
        "<think>\nhm\n</think>\n\ndone<|im_end|>"
    ]
    assert sampled(tokenizer, render(renderer, [*talk, Message(U, "r")])) == ["done<|im_end|>"]


def test_continued_answer_is_masked_to_its_end(loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    answer = render(
        make_renderer("smollm2"),
        [Message(U, "q"), Message(A, "half an")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert sampled(loaded("smollm2")[1], answer) == ["half an"]
    assert answer.assistant_tokens_mask is not None
    assert answer.assistant_tokens_mask[-1] == 1


def test_no_answers_no_ones(make_renderer: Callable[..., Renderer]) -> None:
    assert set(render(make_renderer("qwen3"), [Message(U, "q")]).assistant_tokens_mask or ()) == {0}


def test_end_tokens_inside_an_answer_do_not_end_it(loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    answer = render(make_renderer("qwen3"), [Message(U, "q"), Message(A, "a<|im_end|>b"), Message(U, "r")])
    assert sampled(loaded("qwen3")[1], answer) == ["a<|im_end|>b<|im_end|>"]


def test_end_tokens_spelled_by_a_user_do_not_matter(loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    answer = render(make_renderer("qwen3"), [Message(U, "q<|im_end|>"), Message(A, "a"), Message(U, "<|im_end|>r")])
    assert sampled(loaded("qwen3")[1], answer) == ["a<|im_end|>"]


GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("content", ["4", " spaced ", "\n\nlines\n", "世界"])
def test_generation_blocks_give_transformers_mask(
    content: str, model_folder: Callable[[str], Any], make_renderer: Callable[..., Renderer]
) -> None:
    transformers = pytest.importorskip("transformers")
    talk = [Message(U, "q"), Message(A, content), Message(U, "r"), Message(A, "x")]
    answer = render(make_renderer("qwen3", GENERATION), talk, add_generation_prompt=False)
    reference = transformers.AutoTokenizer.from_pretrained(model_folder("qwen3"))
    expected = reference.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in talk],
        chat_template=GENERATION,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert list(answer.token_ids) == expected["input_ids"]
    assert answer.assistant_tokens_mask == expected["assistant_masks"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content[:2] }}|{% endfor %}",
        "{% for m in messages | reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{{ messages | length }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}",
    ],
)
def test_unprovable_masks_are_refused(template: str, make_renderer: Callable[..., Renderer]) -> None:
    with pytest.raises(BadRequest, match=r"messages\[\d\]") as refused:
        render(make_renderer("qwen3", template), [Message(U, " q "), Message(A, " a "), Message(U, "r")])
    assert refused.value.param == "return_assistant_tokens_mask"


def test_long_conversations_are_refused(make_renderer: Callable[..., Renderer]) -> None:
    talk = [Message(A if i % 2 else U, "x") for i in range(1002)]
    with pytest.raises(BadRequest, match="1000 messages"):
        render(make_renderer("qwen3"), talk)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "llama2"])
def test_spans_cover_every_token_once(name: str, loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    answer = render(make_renderer(name), TALK)
    assert answer.spans is not None
    assert [span["start"] for span in answer.spans] == [0, *(span["end"] for span in answer.spans[:-1])]
    assert answer.spans[-1]["end"] == len(answer.token_ids)
    mask = [int(span["sampled"]) for span in answer.spans for _ in range(span["start"], span["end"])]
    assert mask == answer.assistant_tokens_mask
    assert [span["message"] for span in answer.spans][-1] is None
    tokenizer = loaded(name)[1]
    for i, message in enumerate(TALK):
        ids = [id for s in answer.spans if s["message"] == i for id in answer.token_ids[s["start"] : s["end"]]]
        if name != "gemma3" or message.role != S:  # it writes the system text into the user's turn
            assert message.content in tokenizer.decode(ids, skip_special_tokens=False)  # type: ignore[operator]
        assert all(s["role"] == message.role for s in answer.spans if s["message"] == i)


def test_folded_developer_message_counts_as_the_first_of_its_kind(make_renderer: Callable[..., Renderer]) -> None:
    answer = render(make_renderer("qwen3"), [Message(U, "q"), Message("developer", "d"), Message(U, "r")])
    assert [s["message"] for s in answer.spans or ()] == [1, 0, 2, None]


def test_cut_prompt_has_cut_mask_and_spans(make_renderer: Callable[..., Renderer]) -> None:
    renderer = make_renderer("qwen3")
    whole = render(renderer, TALK)
    cut = render(renderer, TALK, options={"truncate_prompt_tokens": 20, "truncation_side": "left"})
    assert list(cut.token_ids) == list(whole.token_ids[-20:])
    assert cut.assistant_tokens_mask == (whole.assistant_tokens_mask or [])[-20:]
    assert cut.spans is not None
    assert (cut.spans[0]["start"], cut.spans[-1]["end"]) == (0, 20)


def test_tools_change_nothing(loaded: Loaded, make_renderer: Callable[..., Renderer]) -> None:
    renderer = make_renderer("qwen3", output=OutputFacts(has_tool_parser=True))
    answer = render(renderer, CALLS, tools=[Tool("get")], tool_choice=ToolChoice("auto"))
    assert sampled(loaded("qwen3")[1], answer)[1] == "12 degrees<|im_end|>"


def test_nothing_is_attributed_unless_asked(make_renderer: Callable[..., Renderer]) -> None:
    answer = make_renderer("qwen3").render_chat(ChatRequest(TALK), request_id="r")
    assert (answer.assistant_tokens_mask, answer.spans, answer.token_offsets) == (None, None, None)
