"""The recorded answers of `../shared/parity`: read without any tokenizer, since each line says which of its pieces are tokens."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from scaleout import parsers
from scaleout.core import Piece
from scaleout.parsers import Format
from tests.parsers.answers import split_at_tokens

PARITY = Path(__file__).resolve().parents[3] / "shared" / "parity"

_TURNS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<|start|>",
    "<｜Assistant｜>",
)
"""Turn tokens of the base tokenizers; the families' own stand in `families.json`."""


@cache
def families() -> dict[str, Any]:
    """What `families.json` says of each family; empty where the recorded answers are absent."""
    file = PARITY / "families.json"
    return json.loads(file.read_text()) if file.exists() else {}


@cache
def records(family: str) -> list[dict[str, Any]]:
    with gzip.open(PARITY / "derender" / f"{family}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@cache
def vocabulary(family: str) -> frozenset[str]:
    """The added tokens that matter: of the family, of the base tokenizer, and all that some line used."""
    entry = families()[family]
    base = {"<think>", "</think>", "<tool_call>", "</tool_call>"} if entry["base"] == "qwen3" else set()
    if entry["base"] == "deepseek_v3":
        base = {
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        }
    if entry["base"] == "gptoss":
        base = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"}
    used = {record["token_pieces"][n] for record in records(family) for n in record["marker_pieces"]}
    return frozenset((base - set(entry["drop_added"])) | set(entry["markers"]) | used)


@cache
def format_of(family: str) -> Format:
    """The format under the peer's parser names, for the family's vocabulary."""
    entry = families()[family]
    found = parsers.find_format(entry["tool_parser"], entry["reasoning_parser"])
    assert found is not None
    return parsers.bind(found, vocabulary(family))


def pieces_of(record: dict[str, Any]) -> list[Piece]:
    """One piece per token; those of incomplete characters are empty and left out."""
    special = special_tokens(record["family"])
    markers = set(record["marker_pieces"])
    return [
        Piece(text, n in markers, n in markers and text in special)
        for n, text in enumerate(record["token_pieces"])
        if text
    ]


def special_tokens(family: str) -> frozenset[str]:
    return frozenset(families()[family]["special"]) | frozenset(_TURNS)


def prompt_of(record: dict[str, Any]) -> list[Piece]:
    special = special_tokens(record["family"])
    return split_at_tokens(record["prompt_tail"], vocabulary(record["family"]) | special, special)
