"""Structured output that no engine could follow is refused by render, not by the engine later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from scaleout.config import Mode, ModeConfig
from scaleout.dialects import chat
from scaleout.errors import BadRequest, ConfigError
from scaleout.pipeline import Front
from scaleout.pipeline.demands import demand_calls, thinking_markers
from scaleout.pipeline.stages import open_front
from scaleout.tokenizer import load_model_files
from tests.derender.recorded import open_derenderer
from tests.parsers.recorded import families
from tests.parsers.templates import TEMPLATES


@pytest.fixture(scope="module")
def front(tiny_model: Callable[..., Path]) -> Front:
    config = ModeConfig(Mode.RENDER_ONLY, model=str(tiny_model("qwen3")), served_model_names=("m",))
    return open_front(config, load_model_files(config.model))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "a("),
        ("regex", "\0a"),
        ("regex", "[z-a]"),
        ("json", {"type": "nope"}),
        ("json", nested(500)),
        ("json", "{"),
        ("grammar", "start: ("),
        ("structural_tag", "{}"),
    ],
)
def test_what_cannot_be_followed_is_refused(front: Front, kind: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "q"}], "structured_outputs": {kind: value}}
    with pytest.raises(BadRequest) as caught:
        front.render(chat.parse(body), "x")
    assert (caught.value.param or "").startswith("structured_outputs")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "[a-z]+"),
        ("choice", ["a", "b"]),
        ("json_object", True),
        ("json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        ("grammar", 'start: "yes" | "no"'),
    ],
)
def test_what_can_be_followed_passes(front: Front, kind: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "q"}], "structured_outputs": {kind: value}}
    (rendered,) = front.render(chat.parse(body), "x")
    assert rendered.sampling_params.structured_outputs is not None
    assert rendered.sampling_params.structured_outputs[kind] == value


def test_a_checkpoint_may_bring_its_own_format(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """Its `response_template` is read under the name "hf"; without one the name is refused at start."""
    model = tiny_model("qwen3")
    for file in model.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = ModeConfig(Mode.RENDER_ONLY, model=str(tmp_path), served_model_names=("m",), tool_call_parser="hf")
    with pytest.raises(ConfigError):
        open_front(config, load_model_files(config.model))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["response_template"] = TEMPLATES["array"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    front = open_front(config, load_model_files(config.model))
    assert front.derenderer.format is not None
    assert front.derenderer.format.calls is not None


def test_the_operator_may_name_one_of_the_models_templates(tiny_model: Callable[..., Path]) -> None:
    model = str(tiny_model("qwen3"))
    several = {"default": "{{ 'd' }}", "rag": "{{ 'r' }}"}

    def rendered(chat_template: str | None, own: Any) -> str:
        files = evolve(load_model_files(model), chat_template=own)
        opened = open_front(ModeConfig(Mode.RENDER_ONLY, model=model, chat_template=chat_template), files)
        return opened.renderer.render_prompt(chat.parse({"messages": [{"role": "user", "content": "q"}]})).text

    assert rendered("rag", several) == "r"
    assert rendered(None, several) == "d"
    assert rendered("default", "{{ 'only' }}") == "only"
    assert rendered("{{ 'own' }}", several) == "own"
    with pytest.raises(ConfigError, match=r"--chat-template ragg: .* the model has default, rag"):
        rendered("ragg", several)
    with pytest.raises(ConfigError, match="the model has none at all"):
        rendered("rag", None)


@pytest.mark.parametrize(
    ("family", "markers"),
    [
        ("qwen3", ("<think>", "</think>")),
        ("mistral", ("[THINK]", "[/THINK]")),
        ("gemma4", ("<|channel>", "<channel|>")),
        *((name, None) for name in ("hermes", "granite", "hunyuan_a13b", "olmo3", "gpt_oss")),
    ],
)
def test_an_engine_learns_which_ids_hold_a_thought(
    family: str, markers: tuple[str, str] | None, family_tokenizer: Callable[[str], Path]
) -> None:
    """Where thoughts are text, or a header tells, demands say themselves that a thought may come first."""
    derenderer = open_derenderer(
        family_tokenizer(family), families()[family]["tool_parser"], families()[family]["reasoning_parser"]
    )
    found = thinking_markers(derenderer.format, derenderer.tokenizer)
    ids = None if markers is None else [[derenderer.tokenizer.id_of(marker)] for marker in markers]
    assert (found and [found.start, found.end]) == ids


@pytest.mark.parametrize(("tail", "closes"), [("<think>\nHm", True), ("", False)])
def test_a_demand_looks_at_the_prompt(tail: str, closes: bool, family_tokenizer: Callable[[str], Path]) -> None:
    derenderer = open_derenderer(family_tokenizer("olmo3"), "olmo3", "olmo3")
    request = chat.parse(
        {
            "messages": [{"role": "user", "content": "q"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
        }
    )
    prompt = derenderer.tokenizer.encode("<|im_start|>assistant\n" + tail, False)
    demand = demand_calls(derenderer, request, prompt)
    assert demand is not None
    assert (json.loads(demand["structural_tag"])["format"]["type"] == "sequence") is closes
