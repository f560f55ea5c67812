"""/tokenize and /detokenize against the libraries that everybody else uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import Mode, ModeConfig

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie spät ist es? 🕐"}]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama3_1")


@pytest.fixture(scope="module")
def library(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    config = ModeConfig(
        Mode.RENDER_ONLY,
        model=str(folder),
        served_model_names=("tiny", "small"),
        access_log=False,
        enable_tokenizer_info_endpoint=True,
        max_model_len=512,
    )
    with serving(make_app(config)) as running:
        yield running


@pytest.mark.parametrize("text", ["", "Hello there", "Wie spät ist es? 🕐\n\n", "<|eot_id|> in text", "x " * 5000])
@pytest.mark.parametrize("special", [True, False])
def test_a_text_has_the_librarys_ids_however_long(
    server: Server, library: tokenizers.Tokenizer, text: str, special: bool
) -> None:
    ids = library.encode(text, add_special_tokens=special).ids
    answer = server.post("/tokenize", {"prompt": text, "add_special_tokens": special})
    assert answer.json == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}


def test_special_tokens_are_added_unless_they_are_not_wanted(server: Server, library: tokenizers.Tokenizer) -> None:
    assert server.post("/tokenize", {"prompt": "a"}).json["tokens"] == library.encode("a").ids


def test_spellings_come_on_request(server: Server, library: tokenizers.Tokenizer) -> None:
    answer = server.post("/tokenize", {"prompt": "Hello there", "return_token_strs": True, "model": "small"})
    assert answer.json["token_strs"] == library.encode("Hello there").tokens == ["<|begin_of_text|>", "Hello", "Ġthere"]


def test_a_conversation_has_the_ids_that_render_gives(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
    body: dict[str, Any] = {"messages": MESSAGES[1:], "add_generation_prompt": False}
    for extra in ({}, {"add_generation_prompt": True}, {"tools": tools}):
        rendered = server.post("/v1/chat/completions/render", body | extra | {"tool_choice": "none"})
        assert server.post("/tokenize", body | extra).json["tokens"] == rendered.json["token_ids"]
    longer = server.post("/tokenize", {"messages": MESSAGES * 40})
    assert longer.json["count"] > longer.json["max_model_len"]


def test_of_both_forms_the_conversation_counts(server: Server) -> None:
    both = server.post("/tokenize", {"messages": MESSAGES, "prompt": "ignored"}).json
    assert both == server.post("/tokenize", {"messages": MESSAGES}).json


@pytest.mark.parametrize("text", ["", "Hello there", "Wie spät ist es? 🕐", "<|start_header_id|>user"])
def test_ids_become_their_text_with_special_tokens(server: Server, library: tokenizers.Tokenizer, text: str) -> None:
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json == {"prompt": "<|begin_of_text|>" + text}


def test_ids_that_stand_for_nothing_vanish(server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": "Hello"}).json["tokens"]
    answer = server.post("/detokenize", {"tokens": [*ids, 2**31, 2**40, 2**63 - 1, 10_000_000]})
    assert answer.json == {"prompt": "<|begin_of_text|>Hello"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "body.prompt"),
        ("/tokenize", {"prompt": 5}, "body.prompt"),
        ("/tokenize", {"prompt": None}, "body.prompt"),
        ("/tokenize", {"prompt": ["a"]}, "body.prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "perhaps"}, "body.add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": []}, "body.return_token_strs"),
        ("/tokenize", {"prompt": "a", "model": 1}, "body.model"),
        ("/tokenize", {"messages": "hello"}, "body.messages"),
        ("/tokenize", {"messages": [1]}, "body.messages.0"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "body.tokens"),
        ("/detokenize", {"tokens": 5}, "body.tokens"),
        ("/detokenize", {"tokens": "5"}, "body.tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "body.tokens.1"),
        ("/detokenize", {"tokens": [1, "a"]}, "body.tokens.1"),
        ("/detokenize", {"tokens": [1, 1.5]}, "body.tokens.1"),
        ("/detokenize", {"tokens": [[1]]}, "body.tokens.0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(server: Server, path: str, body: Any, param: str) -> None:
    answer = server.post(path, body)
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_an_unknown_model_is_a_404_that_lists_the_known_ones(server: Server, path: str) -> None:
    answer = server.post(path, {"prompt": "a", "tokens": [1], "model": "other"})
    assert answer.status == 404
    assert answer.error == {
        "message": "The model `other` does not exist. Valid aliases: tiny, small.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_the_tokenizers_configuration_is_told_on_request_without_paths(server: Server, folder: Path) -> None:
    answer = server.get("/tokenizer_info")
    assert answer.status == 200
    assert answer.json["bos_token"] == "<|begin_of_text|>"
    assert "{%" in answer.json["chat_template"]
    assert str(folder).encode() not in answer.body
