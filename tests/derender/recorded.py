"""Recorded answers of model families, as a derenderer gets them: ids of the family's test tokenizer."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from scaleout import parsers
from scaleout.core import ChatRequest, ChoiceAnswer, Message, RequestOptions, SamplingWishes, Tool, ToolChoice
from scaleout.derender import Derenderer
from scaleout.tokenizer import load_model_files, load_tokenizer

Record = dict[str, Any]


def read_records(shared: Path, family: str) -> list[Record]:
    with gzip.open(shared / "parity" / "derender" / f"{family}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@lru_cache(maxsize=6)  # a tokenizer takes about 100 MB
def open_derenderer(folder: Path, tool_parser: str | None, reasoning_parser: str | None) -> Derenderer:
    files = load_model_files(str(folder))
    tokenizer = load_tokenizer(files)
    format = parsers.find_format(tool_parser, reasoning_parser)
    bound = None if format is None else parsers.bind(format, tokenizer.added_tokens.values())
    eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    return Derenderer(tokenizer, bound, eos)


def chat_request(record: Record, **options: Any) -> ChatRequest:
    """The request behind a record: its tools, choice auto."""
    tools = [
        Tool(t["function"]["name"], t["function"].get("description"), t["function"].get("parameters"))
        for t in record.get("tools") or ()
    ]
    return ChatRequest(
        [Message("user", "…")],
        tools=tools or None,
        tool_choice=ToolChoice("auto") if tools else ToolChoice("none"),
        sampling=SamplingWishes(**options.pop("sampling", {})),
        options=RequestOptions(),
        **options,
    )


def plain(answer: ChoiceAnswer) -> dict[str, Any]:
    """An answer in the records' words."""
    return {
        "reasoning": answer.reasoning,
        "content": answer.content,
        "tool_calls": [
            {"name": call.name, "arguments": normal(call.arguments), "status": call.status}
            for call in answer.tool_calls
        ],
    }


def expected(record: Record) -> dict[str, Any]:
    want = record["expected"]
    return {
        "reasoning": want["reasoning"],
        "content": want["content"],
        "tool_calls": [
            {"name": call["name"], "arguments": normal(call["arguments"]), "status": call["status"]}
            for call in want["tool_calls"]
        ],
    }


def normal(arguments: str) -> Any:
    """Arguments compare as JSON where they are JSON, else as text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
