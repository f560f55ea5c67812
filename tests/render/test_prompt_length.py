"""What fits into the context, and what is cut away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaleout.core import ChatRequest, CompletionRequest, Message, RequestOptions, SamplingWishes
from scaleout.errors import BadRequest
from scaleout.render import Renderer
from scaleout.render.prompt_length import Edges, positions_to_keep
from scaleout.tokenizer import ModelFiles, Tokenizer

Loaded = Callable[[str], tuple[ModelFiles, Tokenizer]]


def complete(renderer: Renderer, prompt: Any, max_tokens: int = 16, **options: Any) -> list[int]:
    request = CompletionRequest(
        [prompt], sampling=SamplingWishes(max_tokens=max_tokens), options=RequestOptions(**options)
    )
    return list(renderer.render_completion(request, request_id="r")[0].token_ids)


@pytest.mark.parametrize(
    ("wanted", "side", "kept"),
    [
        (None, None, None),
        (8, None, None),
        (9, "left", None),
        (3, None, [5, 6, 7]),
        (3, "left", [5, 6, 7]),
        (3, "right", [0, 1, 2]),
        (-1, "left", [1, 2, 3, 4, 5, 6, 7]),
        (0, "left", []),
    ],
)
def test_which_positions_stay(wanted: int | None, side: Any, kept: list[int] | None) -> None:
    options = RequestOptions(truncate_prompt_tokens=wanted, truncation_side=side)
    assert positions_to_keep(range(8), options, 8, "left") == kept


@pytest.mark.parametrize(
    ("wanted", "side", "kept"),
    [(4, "left", [0, 5, 6, 7]), (4, "right", [0, 1, 2, 7]), (2, "left", [0, 7]), (1, "left", [0])],
)
def test_start_and_end_tokens_stay(wanted: int, side: Any, kept: list[int]) -> None:
    options = RequestOptions(truncate_prompt_tokens=wanted, truncation_side=side)
    assert positions_to_keep(range(8), options, 100, "left", Edges([0], [7])) == kept


def test_edges_are_only_kept_where_they_are() -> None:
    options = RequestOptions(truncate_prompt_tokens=3)
    assert positions_to_keep([5, 1, 2, 3, 4], options, 100, "left", Edges([9], [8])) == [2, 3, 4]


@pytest.mark.parametrize("name", ["llama3_1", "llama2", "qwen3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_cut_text_equals_the_librarys_own_cut(
    name: str, side: Any, make_renderer: Callable[..., Renderer], model_folder: Callable[[str], Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(model_folder(name), truncation_side=side)
    text = "The quick brown fox jumps over the lazy dog, again and again."
    for length in (1, 2, 5, 11):
        expected = reference(text, truncation=True, max_length=length)["input_ids"]
        assert (
            complete(
                make_renderer(name), text, add_special_tokens=True, truncate_prompt_tokens=length, truncation_side=side
            )
            == expected
        )


def test_no_tokens_left_is_an_error(make_renderer: Callable[..., Renderer]) -> None:
    for prompt, options in (("hello", {"truncate_prompt_tokens": 0}), ("", {}), ([], {})):
        with pytest.raises(BadRequest, match="No token_ids rendered"):
            complete(make_renderer("qwen3"), prompt, **options)


@pytest.mark.parametrize(
    ("count", "text"),
    [(20, "which leaves no room"), (21, "which exceeds this limit"), (500, "which exceeds this limit")],
)
def test_too_long_names_tokens_and_limit(count: int, text: str, make_renderer: Callable[..., Renderer]) -> None:
    with pytest.raises(BadRequest) as refused:
        complete(make_renderer("qwen3", max_model_len=20), [1] * count)
    assert refused.value.param == "input_tokens"
    for part in ("20 tokens", f"{count} input tokens", text, f"(parameter=input_tokens, value={count})"):
        assert part in refused.value.message


def test_a_prompt_that_fits_gets_what_is_left(make_renderer: Callable[..., Renderer]) -> None:
    renderer = make_renderer("qwen3", max_model_len=20)
    request = CompletionRequest([[1] * 15], sampling=SamplingWishes(max_tokens=16))
    assert renderer.render_completion(request, request_id="r")[0].sampling_params.max_tokens == 5


def test_minus_one_leaves_room_for_one_token(make_renderer: Callable[..., Renderer]) -> None:
    renderer = make_renderer("qwen3", max_model_len=20)
    assert complete(renderer, [1] * 30, truncate_prompt_tokens=-1) == [1] * 19


@pytest.mark.parametrize("wanted", [-2, 21])
def test_impossible_cuts_are_refused(wanted: int, make_renderer: Callable[..., Renderer]) -> None:
    with pytest.raises(BadRequest, match=f"value={wanted}") as refused:
        complete(make_renderer("qwen3", max_model_len=20), "x", truncate_prompt_tokens=wanted)
    assert refused.value.param == "truncate_prompt_tokens"


def test_hopeless_texts_are_refused_before_the_tokenizer_sees_them(
    loaded: Loaded, make_renderer: Callable[..., Renderer]
) -> None:
    most = 20 * loaded("qwen3")[1].max_token_chars
    renderer = make_renderer("qwen3", max_model_len=20)
    text = "x" * (most + 1)
    for render in (
        lambda: complete(renderer, text),
        lambda: renderer.render_chat(ChatRequest([Message("user", text)]), request_id="r"),
    ):
        with pytest.raises(BadRequest, match=f"more than {most} characters") as refused:
            render()
        assert refused.value.param == "input_text"
    assert len(complete(renderer, text, truncate_prompt_tokens=3)) == 3


def test_offsets_are_cut_with_the_ids(make_renderer: Callable[..., Renderer]) -> None:
    request = CompletionRequest(
        ["one two three"],
        options=RequestOptions(return_token_offsets=True, truncate_prompt_tokens=2, truncation_side="left"),
    )
    answer = make_renderer("qwen3").render_completion(request, request_id="r")[0]
    assert answer.token_offsets == [(3, 7), (7, 13)]
