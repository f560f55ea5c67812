"""Thoughts between `<think>` and `</think>`, as most reasoning models write them; no calls."""

from scaleout.parsers.format import Format, Thought

FORMAT = Format(
    name="think",
    thought=Thought(),
    tokens=("<think>", "</think>"),
    reasoning_parsers=(
        *("qwen3", "holo2", "mimo", "minicpmv", "nemotron_v3", "step3p5", "ling3", "poolside_v1"),
        "granite_thinking_parser",
    ),
    signs=(("<think>", "</think>"),),
)
