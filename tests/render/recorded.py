"""The recorded corpus of the reference peer, replayed through dialects and renderer.

Run as a script it prints counts per family: `python tests/render/recorded.py FOLDER_OF_MODELS ../shared/parity/render`.
"""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from scaleout import codec, parsers
from scaleout.core import ChatRequest, CompletionRequest, GenerateRequest, SamplingParams
from scaleout.errors import RequestError
from scaleout.parsers.constraint import constrain_calls
from scaleout.render import ModelFacts, OutputFacts, Renderer, RenderSettings, SamplingDefaults
from scaleout.tokenizer import load_model_files, load_tokenizer
from scaleout.wire import write_generate_request

FAMILIES = {
    "smollm2": "smollm2",
    "qwen3": "qwen3",
    "llama31": "llama3_1",
    "llama2": "llama2",
    "deepseek_v3": "deepseek_v3",
    "gemma3": "gemma3",
}
"""Families of the corpus, and the models that they are recorded with."""

LENGTHS = {"smollm2": 8192, "llama2": 4096, "gemma3": 32768}
FORMATS = {"qwen3": "qwen3", "llama31": "hermes", "deepseek_v3": "deepseek_v3", "gemma3": "pythonic"}
MARKS = {"qwen3": "always", "llama31": "with_tools"}
REASONING = ("qwen3", "deepseek_v3")
TUNED: dict[str, Any] = {
    "trust_request_chat_template": True,
    "exclude_tools_when_tool_choice_none": True,
    "default_chat_template_kwargs": {"enable_thinking": False},
}
TUNED_OVERRIDE = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 512}

DEFAULTS = {a.name: list(a.default) if a.default == () else a.default for a in attrs.fields(SamplingParams)}
EXCEPTIONS: Mapping[str, list[str]] = json.loads((Path(__file__).parent / "recorded_exceptions.json").read_text())
"""Reason → ids of recorded lines where scaleout decides otherwise."""
EXCEPTED = {id: reason for reason, ids in EXCEPTIONS.items() for id in ids}


def lines(folder: Path, family: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / f"{family}.jsonl.gz", "rt") as file:
        yield from map(json.loads, file)


def make_renderer(family: str, server: str, model: Path, corpus: Path) -> Renderer:
    """The renderer of one server that took part in the recording."""
    files = load_model_files(str(model))
    tokenizer = load_tokenizer(files)
    settings = dict(TUNED) if server == "tuned" else {}
    if family == "llama2":
        settings["chat_template"] = (corpus / "llama2.jinja").read_text()
    format_name = FORMATS.get(family)
    return Renderer(
        tokenizer,
        ModelFacts(
            name="m",
            max_model_len=256 if server == "small" else LENGTHS.get(family, 131072),
            vocab_size=max(files.vocab_size, tokenizer.vocab_size),
            chat_template=files.chat_template,
        ),
        defaults=SamplingDefaults.from_generation_config({}, TUNED_OVERRIDE if server == "tuned" else None),
        settings=RenderSettings(**settings),
        output=OutputFacts(
            has_tool_parser=format_name is not None,
            has_reasoning_parser=family in REASONING,
            tool_constraint=partial(_constrain, format_name) if format_name else None,
            marks_are_special=MARKS.get(family, "never"),  # type: ignore[arg-type]
        ),
    )


def _constrain(format_name: str, request: ChatRequest, prompt_ids: Sequence[int]) -> Mapping[str, Any] | None:
    return constrain_calls(parsers.FORMATS[format_name], request)


def answer(line: Mapping[str, Any], renderer: Renderer) -> tuple[int, Any]:
    """Status and bodies that scaleout gives for a recorded request. The model's name is the routes' business and checked here."""
    dialect = importlib.import_module("scaleout.dialects." + line["route"].split("/")[2])
    text = line["body"] if line["request"] is None else json.dumps(line["request"])
    try:
        body = codec.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError as e:
        return 400, str(e)
    if not isinstance(body, dict):
        return 400, "not an object"
    try:
        request: ChatRequest | CompletionRequest = dialect.parse(body)
        if request.options.model not in (None, "", "m"):
            return 404, "model"
        return 200, render(renderer, request)
    except RequestError as e:
        return e.status, e.message


def render(renderer: Renderer, request: ChatRequest | CompletionRequest) -> list[GenerateRequest]:
    if isinstance(request, ChatRequest):
        return [renderer.render_chat(request, request_id="r")]
    return renderer.render_completion(request, request_id="r")


def differences(line: Mapping[str, Any], renderer: Renderer) -> list[str]:
    """What differs between the recorded answer and ours: status, ids, sampling parameters, and the fields that are copied through."""
    status, given = answer(line, renderer)
    if status != line["status"]:
        return [f"status {line['status']} → {status}: {'' if status == 200 else given}"]
    if status != 200:
        return []
    recorded = line["response"] if isinstance(line["response"], list) else [line["response"]]
    if len(recorded) != len(given):
        return [f"{len(recorded)} answers → {len(given)}"]
    return [
        difference
        for theirs, ours in zip(recorded, given, strict=True)
        for difference in compare(theirs, codec.loads(codec.dumps(write_generate_request(ours))))
    ]


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for name in ("token_ids", "token_offsets", "model", "stream", "cache_salt", "priority"):
        if theirs.get(name) != ours.get(name):
            yield name
    expected, given = _params(theirs["sampling_params"]), _params(ours["sampling_params"])
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name, DEFAULTS.get(name)) != given.get(name, DEFAULTS.get(name)):
            yield f"sampling_params.{name}"
    told = dict((theirs["reasoning_parser_kwargs"] or {}).get("chat_template_kwargs", {}))
    told.pop("cohere_format", None)  # one family's variable, which the peer puts into every request
    if told != (ours["reasoning_parser_kwargs"] or {}).get("chat_template_kwargs", {}):
        yield "reasoning_parser_kwargs"


def _params(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters in one form: the peer leaves out defaults, and 16 even where it is no default."""
    params = {**wire, "max_tokens": wire.get("max_tokens", 16), "extra_args": wire.get("extra_args") or None}
    constraint = params.get("structured_outputs")
    if constraint and constraint["structural_tag"]:
        params["structured_outputs"] = {**constraint, "structural_tag": json.loads(constraint["structural_tag"])}
    return params


def replay(family: str, corpus: Path, open_renderer: Callable[[str], Renderer]) -> tuple[Counter[str], list[str]]:
    """Counts by outcome, and what went wrong: a difference that is not excepted, or an exception that is none any more."""
    renderers: dict[str, Renderer] = {}
    counts: Counter[str] = Counter()
    wrong = []
    for line in lines(corpus, family):
        server = line["server"]
        if server not in renderers:
            renderers[server] = open_renderer(server)
        found = differences(line, renderers[server])
        excepted = line["id"] in EXCEPTED
        if bool(found) != excepted:
            wrong.append(f"{line['id']}: {', '.join(found) or 'agrees, but is listed as an exception'}")
        counts[
            "excepted" if excepted else "different" if found else "same" if line["status"] == 200 else "refused by both"
        ] += 1
    return counts, wrong


def main(models: Path, corpus: Path) -> None:
    for family, model in FAMILIES.items():
        folder = models / ("SmolLM2-135M-Instruct" if model == "smollm2" else f"{model}-tiny")
        counts, wrong = replay(family, corpus, partial(make_renderer, family, model=folder, corpus=corpus))
        print(
            f"{family:12} {sum(counts.values()):4}  " + "  ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        )
        for text in wrong:
            print("   ", text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
