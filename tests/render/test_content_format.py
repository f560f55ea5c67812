"""Reading from a template whether it wants message content as text or as parts."""

# ruff: noqa: E501 - one template a line

from __future__ import annotations

import pytest

from scaleout.render.chat_template import ChatTemplate
from scaleout.render.content_format import asks_for_null_content, detect_content_format

PARTS = [
    "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}x{% endfor %}{% endif %}{% endfor %}",
    "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% for c in m.content %}x{% endfor %}{% endfor %}",
    "{% set a = messages %}{% set b = a | reverse %}{% for m in b[::-1] %}{% for c in m.content %}x{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set body = m.content %}{% for c in body %}x{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content | selectattr('type', 'equalto', 'image') %}x{% endfor %}{% endfor %}",
    "{% set first = messages[0] %}{% for c in first.content %}x{% endfor %}",
    "{% for c in messages[0].content[1:] %}x{% endfor %}",
    "{% macro show(body) %}{% for c in body %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% macro show(m) %}{% for c in m.content %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m=m) }}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% set content = 1 %}{% endif %}{% for c in content %}x{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set c = m.content if m.content is not string else [] %}{% for x in c %}x{% endfor %}{% endfor %}",
]
TEXT = [
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content | trim }}{{ m.content[0] }}{% endfor %}",
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.content }}{% endfor %}{% endfor %}",
    "{% for t in tools %}{% for c in t.content %}x{% endfor %}{% endfor %}",
    "{% macro show(content) %}{% for c in content %}x{% endfor %}{% endmacro %}{{ show(tools) }}",
    "no loop at all",
    "{% set content = messages %}{% for m in messages %}{{ m.role }}{% endfor %}",
]


@pytest.mark.parametrize("source", PARTS)
def test_loops_over_content_want_parts(source: str) -> None:
    assert detect_content_format(ChatTemplate(source).tree) == "openai"


@pytest.mark.parametrize("source", TEXT)
def test_others_want_text(source: str) -> None:
    assert detect_content_format(ChatTemplate(source).tree) == "string"


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("{% for m in messages %}{% if m['content'] is none %}x{% endif %}{% endfor %}", True),
        ("{% for m in messages %}{% if m.content is not none %}x{% endif %}{% endfor %}", True),
        ("{% for m in messages %}{% if m.tool_calls is none %}x{% endif %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content or '' }}{% endfor %}", False),
    ],
)
def test_templates_that_ask_for_null(source: str, asks: bool) -> None:
    assert asks_for_null_content(ChatTemplate(source).tree) is asks
