"""How formats are found, bound to a vocabulary and put together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from scaleout import parsers
from scaleout.core import Piece
from scaleout.parsers import FORMATS
from scaleout.parsers.peer_names import REFUSED, REFUSED_TOOLS
from tests.parsers.answers import Answer, parse, split_at_tokens

# The peer's names for the pairs of FORMATS section 4.
PAIRS = [
    *(
        ("hermes", None),
        ("hermes", "qwen3"),
        ("qwen3_coder", None),
        ("qwen3_xml", "qwen3"),
        ("seed_oss", "seed_oss"),
        ("llama3_json", None),
    ),
    *(
        ("llama4_pythonic", None),
        ("pythonic", None),
        ("mistral", "mistral"),
        ("mistral", None),
        ("deepseek_v3", "deepseek_r1"),
    ),
    *(
        ("deepseek_v3", None),
        ("deepseek_v31", "deepseek_v3"),
        ("deepseek_v32", "deepseek_v3"),
        ("deepseek_v4", "deepseek_v4"),
    ),
    *(
        ("kimi_k2", "kimi_k2"),
        ("glm47", "glm47"),
        ("glm45", "glm45"),
        ("minimax_m2", "minimax_m2"),
        ("openai", "openai_gptoss"),
    ),
    *(
        ("granite", "granite"),
        ("granite4", None),
        ("jamba", None),
        ("internlm", None),
        ("phi4_mini_json", None),
        ("ernie45", "ernie45"),
    ),
    *(
        ("hunyuan_a13b", "hunyuan_a13b"),
        ("step3", "step3"),
        ("olmo3", "olmo3"),
        ("gemma4", "gemma4"),
        ("functiongemma", None),
    ),
    *(
        ("xlam", None),
        ("cohere_command3", "cohere_command3"),
        ("longcat", None),
        ("lfm2", None),
        ("apertus", None),
        (None, "deepseek_r1"),
    ),
]


@pytest.mark.parametrize(("tools", "thoughts"), PAIRS)
def test_names_of_the_peer(tools: str | None, thoughts: str | None) -> None:
    found = parsers.find_format(tools, thoughts)
    assert found is not None
    assert (found.calls is not None) == (tools is not None)
    assert (found.thought is not None) == (thoughts is not None)


def test_nothing_asked_nothing_found() -> None:
    assert parsers.find_format(None, None) is None
    assert parsers.find_format("", "") is None


@pytest.mark.parametrize(
    ("tools", "thoughts", "hint"),
    [("hermez", None, "did you mean 'hermes'"), (None, "qwen33", "'qwen3'"), ("think", None, "unknown")],
)
def test_unknown_names(tools: str | None, thoughts: str | None, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parsers.find_format(tools, thoughts)


def test_halves_that_belong_together_are_not_parted() -> None:
    with pytest.raises(ValueError, match="do not go together"):
        parsers.find_format("hermes", "openai_gptoss")
    with pytest.raises(ValueError, match="do not go together"):
        parsers.find_format("openai", "qwen3")
    assert parsers.find_format("openai", None) == FORMATS["gpt_oss"]


def test_a_vocabulary_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'kimi_k2' needs tokens .*<\|tool_call_begin\|>"):
        parsers.bind(FORMATS["kimi_k2"], ["<|im_end|>"])
    assert parsers.bind(FORMATS["kimi_k2"], FORMATS["kimi_k2"].tokens) == FORMATS["kimi_k2"]


def test_mistral_by_its_vocabulary() -> None:
    format = parsers.find_format("mistral", "mistral")
    assert format is not None
    assert parsers.bind(format, format.tokens).name == "mistral"
    assert parsers.bind(format, ["[TOOL_CALLS]"]).name == "mistral_v3"


@pytest.mark.parametrize("as_tokens", [True, False])
def test_markers_count_as_the_vocabulary_spells_them(as_tokens: bool) -> None:
    """Where a marker is a token its spelling is text; where it is none its spelling is the marker."""
    format = FORMATS["hermes"] if as_tokens else parsers.bind(FORMATS["hermes"], ())
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    spelled = parse(format, parsers.begin(format, ()), [[Piece(text)]])
    assert spelled == Answer(content=text) if as_tokens else spelled.calls[0].name == "f"


CALL_IN_THOUGHT = '<think>hm<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("thoughts", "ends"), [("qwen3", True), ("deepseek_r1", False), ("kimi_k2", True), ("ernie45", False)]
)
def test_whether_a_call_ends_a_thought_is_the_thoughts_property(thoughts: str, ends: bool) -> None:
    format = parsers.find_format("hermes", thoughts)
    assert format is not None
    answer = parse(format, parsers.begin(format, ()), [split_at_tokens(CALL_IN_THOUGHT, format.tokens)])
    assert (answer.reasoning == "hm") == ends
    assert len(answer.calls) == ends


@pytest.mark.parametrize(
    ("model", "name"),
    [("qwen3", "qwen3"), ("deepseek_v3", "deepseek_v3"), ("gptoss", "gpt_oss"), ("llama2", None), ("gemma3", None)],
)
def test_detection_from_real_models(model: str, name: str | None, tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model(model)
    template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    added = [token["content"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]]
    found = parsers.detect_format(template, added)
    assert (found and found.name) == name
    if found:
        parsers.bind(found, added)


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.signs])
def test_detection_from_signs(name: str) -> None:
    """A family's own signs lead to a format with the same table; where families share one grammar, any of them will do."""
    format = FORMATS[name]
    for group in format.signs:
        found = parsers.detect_format("\n".join(group), ())
        assert found is not None
        if format.calls:
            assert found.calls == format.calls or name in ("deepseek_v4",)


def test_detection_adds_plain_thoughts() -> None:
    template = '<tool_call>{"name": …, "arguments": …}</tool_call>'
    plain = parsers.detect_format(template, ())
    thinking = parsers.detect_format(template, ["<think>", "</think>"])
    assert plain == FORMATS["hermes"]
    assert thinking is not None
    assert thinking.thought == FORMATS["think"].thought
    assert thinking.calls == FORMATS["hermes"].calls


TURNS = "<|im_start|>user\nWhat does <think> do?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("tail", "region"),
    [
        *(
            (TURNS, "content"),
            (TURNS + "<think>", "thought"),
            (TURNS + "<think>\n", "thought"),
            (TURNS + "<think>\n\n</think>\n\n", "content"),
        ),
        *(
            (TURNS + "<think>\nOnce", "thought"),
            ("", "content"),
            ("<think>\n", "thought"),
            ("</think><think>", "thought"),
        ),
    ],
)
def test_the_prompt_decides_where_the_answer_starts(tail: str, region: str) -> None:
    format = FORMATS["qwen3"]
    special = ("<|im_start|>", "<|im_end|>")
    state = parsers.begin(format, split_at_tokens(tail, (*format.tokens, *special), special))
    assert state.region == region
    answer = parse(format, state, [[Piece(" x")]])
    layout = tail.endswith(("<think>", "</think>\n\n", "<think>\n"))
    assert (answer.reasoning or answer.content) == ("x" if layout else " x")


def peer_names(shared: Path, half: str) -> list[str]:
    """The names that the contract lists as registered by the peer."""
    text = (shared / "design" / "CONTRACT.md").read_text().split("Parser names registered:")[1].split("\n\n")[0]
    tools, _, reasoning = text.partition("reasoning – ")
    found = tools.partition("tools – ")[2] if half == "tools" else reasoning
    names = []
    for word in (word.strip(" .;–") for word in found.split()):
        first, *others = word.split("/")
        stem = re.sub(r"v?\d+$" if others and others[0].startswith("v") else r"\d+$", "", first)
        names += [first, *(stem + other for other in others)]
    return [name for name in names if name]


@pytest.mark.parametrize("half", ["tools", "reasoning"])
def test_every_name_of_the_peer_is_a_format_or_refused_with_a_reason(shared_folder: Path, half: str) -> None:
    names = peer_names(shared_folder, half)
    assert len(names) > 35
    refused = {**REFUSED, **REFUSED_TOOLS} if half == "tools" else REFUSED
    for name in names:
        pair = (name, None) if half == "tools" else (None, name)
        if name in refused:
            with pytest.raises(ValueError, match=f"parser '{name}' is not supported: "):
                parsers.find_format(*pair)
        elif name != "hf":
            assert parsers.find_format(*pair) is not None
    assert set(REFUSED) <= {*peer_names(shared_folder, "tools"), *peer_names(shared_folder, "reasoning")}


@pytest.mark.parametrize(
    ("names", "same_as"),
    [
        (("qwen3_json", None), ("hermes", None)),
        (("step3p5", "step3p5"), ("qwen3_coder", "qwen3")),
        (("ling3", "ling3"), ("glm47", "qwen3")),
        (("poolside_v1", "poolside_v1"), ("glm47", "qwen3")),
    ],
)
def test_other_names_for_the_same_grammar(names: tuple[str, str | None], same_as: tuple[str, str | None]) -> None:
    assert parsers.find_format(*names) == parsers.find_format(*same_as)
