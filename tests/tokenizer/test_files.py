"""Model folders: what is read from them, and what is said when they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaleout.errors import ConfigError
from scaleout.tokenizer import load_model_files, load_tokenizer
from scaleout.tokenizer.model_length import read_max_model_len, read_vocab_size

CONFIG: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 10, "eos_token_id": 2}


def write(folder: Path, **files: Any) -> Path:
    """Write `name=value` as JSON to name.json."""
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_reads_a_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        config=CONFIG,
        generation_config={"eos_token_id": [7, 2, 7], "temperature": 0.6},
        tokenizer_config={"chat_template": "T"},
    )
    files = load_model_files(str(tmp_path))
    assert (files.name, files.folder, files.tokenizer_folder) == (str(tmp_path), tmp_path, tmp_path)
    assert (files.max_model_len, files.vocab_size, files.eos_token_ids) == (64, 10, (7, 2))
    assert (files.generation_config["temperature"], files.chat_template) == (0.6, "T")
    assert files.gguf is None


@pytest.mark.parametrize(
    ("generation", "config", "eos"),
    [
        ({}, {"eos_token_id": 2}, (2,)),
        ({"eos_token_id": None}, {"eos_token_id": [1, 106]}, (1, 106)),
        ({"eos_token_id": 5}, {"eos_token_id": 2}, (5,)),
        ({}, {"text_config": {"eos_token_id": 3}, "eos_token_id": 9}, (3,)),
        ({}, {"text_config": {}, "eos_token_id": 9}, (9,)),
        ({}, {}, ()),
    ],
)
def test_end_ids(generation: dict[str, Any], config: dict[str, Any], eos: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path, config=config, generation_config=generation)
    assert load_model_files(str(tmp_path)).eos_token_ids == eos


def test_tokenizer_of_another_place(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    model = write(tmp_path / "model", config=CONFIG, tokenizer_config={"chat_template": "mine"})
    other = tiny_model("llama2")
    files = load_model_files(str(model), tokenizer=str(other))
    assert (files.name, files.folder, files.tokenizer_folder) == (str(model), model, other)
    assert (files.max_model_len, files.vocab_size) == (64, 10)
    assert files.chat_template != "mine"
    assert load_tokenizer(files).vocab_size == 32000


# ------------------------------------------------------------------------------------------ chat templates


def add_templates(folder: Path, *sources: str) -> None:
    """Put a template into each of the named places, the place's name being its text."""
    if "jinja" in sources:
        (folder / "chat_template.jinja").write_text("jinja")
    if "additional" in sources:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("additional")
    if "list" in sources:
        write(folder, tokenizer_config={"chat_template": [{"name": "default", "template": "list"}]})
    if "config" in sources:
        write(folder, tokenizer_config={"chat_template": "config"})
    if "old" in sources:
        write(folder, chat_template={"chat_template": "old"})


@pytest.mark.parametrize(
    ("sources", "template"),
    [
        ([], None),
        (["old"], "old"),
        (["config", "old"], "config"),
        (["list", "old"], {"default": "list"}),
        (["jinja", "config", "old"], "jinja"),
        (["jinja", "additional", "config"], {"default": "jinja", "tool_use": "additional"}),
        (["additional", "config"], {"tool_use": "additional"}),
    ],
)
def test_chat_template_places(sources: list[str], template: Any, tmp_path: Path) -> None:
    write(tmp_path, config=CONFIG)
    add_templates(tmp_path, *sources)
    assert load_model_files(str(tmp_path)).chat_template == template


@pytest.mark.parametrize("sources", [["config"], ["list"], ["jinja", "config"], ["jinja", "additional", "config"]])
def test_chat_template_equals_transformers(
    sources: list[str], tmp_path: Path, tiny_model: Callable[..., Path], auto_tokenizer: Any
) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((tiny_model("llama2") / name).read_bytes())
    add_templates(tmp_path, *sources)
    assert load_model_files(str(tmp_path)).chat_template == auto_tokenizer.from_pretrained(tmp_path).chat_template


# ------------------------------------------------------------------------------------------ lengths and sizes


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"seq_length": 8192, "max_position_embeddings": 4096}, 4096),
        ({"model_max_length": 500, "max_position_embeddings": 100}, 500),
        ({"text_config": {"max_position_embeddings": 77}, "max_position_embeddings": 5}, 77),
        ({"thinker_config": {"text_config": {"max_position_embeddings": 78}}}, 78),
        ({"max_position_embeddings": 4096, "sliding_window": 512}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.5}}, 10240),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "mrope", "mrope_section": [1]}}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, 4096),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 100,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}},
            },
            200,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": None}}, 4096),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 131072),
        ({"model_type": "nobody"}, 2048),
        ({"max_position_embeddings": None}, 2048),
        ({"max_position_embeddings": "many"}, 2048),
    ],
)
def test_max_model_len(config: dict[str, Any], length: int) -> None:
    assert read_max_model_len(config) == length


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 10}, 10),
        ({"text_config": {"vocab_size": 12}, "vocab_size": 10}, 12),
        ({"text_config": {"hidden_size": 8}, "vocab_size": 10}, 10),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 262208),
        ({}, 0),
    ],
)
def test_vocab_size(config: dict[str, Any], size: int) -> None:
    assert read_vocab_size(config) == size


# ------------------------------------------------------------------------------------------ what can be wrong


@pytest.mark.parametrize(
    "model", ["./no/such/folder", "/no/such/folder", "a b", "../x", "org/name/more", "", "model.gguf/"]
)
def test_a_name_that_leads_nowhere(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError):
        load_model_files(model)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "\x00\x01"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_files_that_are_no_json_object(name: str, content: str, tmp_path: Path) -> None:
    write(tmp_path, config=CONFIG)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize("template", [5, ["x"], [{"name": "a"}], {"a": 1}, [{"name": 1, "template": "x"}]])
def test_a_chat_template_of_another_shape(template: Any, tmp_path: Path) -> None:
    write(tmp_path, config=CONFIG, tokenizer_config={"chat_template": template})
    with pytest.raises(ConfigError, match="chat_template"):
        load_model_files(str(tmp_path))


def test_a_model_without_tokenizer_says_so_when_it_is_wanted(tmp_path: Path) -> None:
    write(tmp_path, config=CONFIG)
    files = load_model_files(str(tmp_path))
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(files)


@pytest.mark.parametrize("content", ["{}", "not json", '{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}'])
def test_a_damaged_tokenizer(content: str, tmp_path: Path) -> None:
    write(tmp_path, config=CONFIG)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(load_model_files(str(tmp_path)))


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"1": {"special": True}}},
        {"added_tokens_decoder": {"1": 5}},
        {"added_tokens_decoder": {"x": "y"}},
    ],
)
def test_damaged_added_tokens(config: dict[str, Any], tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model("llama2") / "tokenizer.json").read_bytes())
    write(tmp_path, config=CONFIG, tokenizer_config=config)
    with pytest.raises(ConfigError, match="added token"):
        load_tokenizer(load_model_files(str(tmp_path)))
