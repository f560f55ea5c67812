"""Request bodies that use about everything a dialect knows."""

from __future__ import annotations

from typing import Any

from scaleout.dialects import Dialect, chat, completions, messages, responses

Json = Any
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

CHAT: dict[str, Json] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Really."}]},
        {
            "role": "user",
            "content": ["bare", {"type": "text", "text": "part"}, {"image_url": {"url": "data:,"}}],
            "name": "u",
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "find", "arguments": '{"city": "Oslo", "n": 2.0}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "find", "arguments": {"city": "Bergen"}}},
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "-3"}], "tool_call_id": "c1"},
        {"role": "user"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "find", "description": "d", "parameters": SCHEMA, "strict": True}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "find"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 30,
    "temperature": 0.5,
    "stop": "END",
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"7": 1.5},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "documents": [{"title": "t", "text": "x"}],
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "vllm_xargs": {"a": 1},
    "n": 2,
    "seed": 7,
}
COMPLETION: dict[str, Json] = {
    "model": "m",
    "prompt": [[1, 2, 3], [4]],
    "max_tokens": 5,
    "echo": True,
    "logprobs": 2,
    "stop": ["a", "b"],
    "allowed_token_ids": [1, 2],
    "bad_words": ["x"],
    "truncate_prompt_tokens": -1,
}
MESSAGE: dict[str, Json] = {
    "model": "m",
    "max_tokens": 3000,
    "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": ".", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "find", "input": {"city": "Oslo", "n": 2.0}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "-3"},
                        {"type": "image", "source": {"type": "url", "url": "https://e/x.png"}},
                        {"type": "tool_reference", "tool_name": "more"},
                        {"type": "text", "text": "snow"},
                    ],
                },
            ],
        },
        {
            "role": "system",
            "content": [
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "more"}},
                {"type": "text", "text": "Stay brief."},
            ],
        },
        {"role": "user", "content": "Go on."},
    ],
    "tools": [
        {"name": "find", "description": "d", "input_schema": SCHEMA, "strict": True},
        {"name": "more", "input_schema": {}, "defer_loading": True},
    ],
    "tool_choice": {"type": "tool", "name": "find", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.9,
    "stream": True,
    "metadata": {"user_id": "u"},
}
RESPONSE: dict[str, Json] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": "Really."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"city": "Oslo", "n": 2.0}'},
        {"type": "function_call", "call_id": "c2", "name": "find", "namespace": "maps", "arguments": ""},
        {"type": "custom_tool_call", "call_id": "c3", "name": "shell", "input": "ls"},
        {"type": "function_call_output", "call_id": "c1", "output": "-3"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "file"},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [
        {"type": "function", "name": "find", "description": "d", "parameters": SCHEMA, "strict": True},
        {"type": "web_search"},
        {"type": "custom", "name": "shell", "description": "run"},
        {"type": "namespace", "name": "maps", "description": "", "tools": [{"type": "function", "name": "find"}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "find"}]},
    "parallel_tool_calls": False,
    "max_output_tokens": 30,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "truncation": "auto",
    "metadata": {"k": "v"},
    "stop": ["a"],
    "stream": True,
    "temperature": 0.5,
    "request_id": "resp_1",
}

RICH: dict[str, tuple[Dialect, dict[str, Json]]] = {
    "chat": (chat, CHAT),
    "completions": (completions, COMPLETION),
    "messages": (messages, MESSAGE),
    "responses": (responses, RESPONSE),
}
