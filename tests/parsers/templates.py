"""Response templates of the kinds that checkpoints ship."""

from __future__ import annotations

from typing import Any

_FUNCTION = {"type": "function", "function": "{content}"}
_NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_THINK = {"open": "<think>", "close": "</think>", "content": "text"}

TEMPLATES: dict[str, dict[str, Any]] = {
    "objects": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": _THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": _FUNCTION,
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
        },
    },
    "tags": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": _THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": _NAMED,
            },
            "content": {"close": "<|im_end|>"},
        },
    },
    "braces": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": _NAMED,
            },
            "content": {"close": ["<turn|>", "<eos>"]},
        },
    },
    "slots": {
        "start_anchor": "[/INST]",
        "fields": {
            "reasoning": {"open": "[THINK]", "close": "[/THINK]"},
            "tool_calls": {
                "open_pattern": r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]",
                "content": "json",
                "transform": _NAMED,
            },
            "content": {"close": "</s>"},
        },
    },
    "array": {
        "start_anchor": "<A>",
        "fields": {
            "thoughts": {"open": "<T>", "close": "</T>"},
            "tool_calls": {
                "open": "<CALLS>",
                "close": "</CALLS>",
                "content": "json",
                "transform_each": True,
                "transform": {"id": "{id}", "function": {"name": "{tool}", "arguments": "{input}"}},
            },
            "content": {},
        },
    },
    "python": {
        "start_anchor": "<A>",
        "fields": {
            "thinking": {"open": "<T>", "close": "</T>"},
            "tool_calls": {
                "open": "<CALLS>",
                "close": "</CALLS>",
                "content": "python-call-list",
                "transform_each": True,
            },
        },
    },
}
