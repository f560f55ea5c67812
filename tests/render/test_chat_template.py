"""One template, our environment and transformers': the same text, and the same refusals."""

# ruff: noqa: E501 - one template a line

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import Json
from scaleout.errors import BadRequest
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.template_json import to_json

CHAT = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
    {"role": "user", "content": "  Grüße, 世界 😀\n"},
    {
        "role": "assistant",
        "content": "ok",
        "tool_calls": [{"function": {"name": "f", "arguments": {"b": 2.0, "a": None}}}],
    },
    {"role": "tool", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object"}}}]

SAME = [
    "{% for m in messages %}\n    [{{ m.role }}]{{ m['content'] }}\n    {%- if not loop.last %},{% endif %}\n{% endfor %}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ messages | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{{ messages[1].content | tojson(ensure_ascii=True) }}{{ '\\x7f\\u2028</script>' | tojson(ensure_ascii=True) }}",
    "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}{% endfor %}{{ ns.n }}{{ ns.last }}",
    "{% macro show(m, sep=':') %}{{ m.role }}{{ sep }}{% endmacro %}{% for m in messages %}{{ show(m) }}{{ show(m, sep='/') }}{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.length }}{{ loop.first }}{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for m in messages | rejectattr('role', 'equalto', 'tool') | list %}{{ m.role }}{% endfor %}",
    "{{ messages[::-1] | map(attribute='role') | join(', ') }}{{ (messages | map('length') | list) }}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments | items %}{{ k }}={{ v }};{% endfor %}{{ messages[2].tool_calls[0].function.arguments | dictsort }}",
    "{{ messages[0].missing }}|{{ messages[0].missing is defined }}|{{ messages[0].missing is none }}|{{ nothing }}|{{ messages[9] is defined }}",
    "{{ messages[0].get('x', 'default') }}{{ messages[0].keys() | list }}{{ 'role' in messages[0] }}{{ messages[0] is mapping }}{{ messages is sequence }}",
    "{{ messages[1].content | trim }}|{{ messages[1].content.strip() }}|{{ messages[1].content.upper() }}|{{ messages[1].content | length }}|{{ 'a</think>b'.split('</think>')[-1] }}",
    "{{ messages[1].content.startswith('  G') }}{{ messages[1].content.endswith('x') }}{{ messages[1].content is string }}{{ messages[1].content.find('世') }}",
    "{{ {'b': 1, 'a': [1, 2.5, true, none]} }}{{ dict(a=1, b=2) }}{{ dict.fromkeys(['x', 'y'], 0) }}{{ range(3) | list }}",
    "{{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 8 }} {{ 1 + 2 * 3 }} {{ 'a' + 'b' * 2 }} {{ [1] + [2] }} {{ 'x' ~ 1 ~ none }}",
    "{{ bos_token }}{{ eos_token if eos_token is defined }}{% if tools %}{{ tools | tojson }}{% endif %}{{ documents }}{{ add_generation_prompt }}",
    "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "  {% if true %}  \n  x\n  {%- endif %}  \n\n{#- a comment -#}\n  y\n",
    "{% filter upper %}abc{{ messages[0].role }}{% endfilter %}{% set block %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ block | length }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% with x = 5 %}{{ x }}{% endwith %}{{ 'yes' if messages else 'no' }}{{ messages[0].role | default('x') }}",
    "{{ messages | selectattr('content', 'string') | list | length }}{{ messages | groupby('role') | length }}{{ [3, 1, 2] | sort | reverse | list }}",
    "{{ cycler('a', 'b').next() }}{% set j = joiner(', ') %}{{ j() }}{{ j() }}{{ 'a' | replace('a', 'b') }}{{ 3 | string | int }}",
    "{{ 'a\\'b' | e }}{{ '<' | safe }}{{ 'x' | indent(2) }}{{ messages.__class__ }}{{ cycler.__init__ }}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}",
]

REFUSED = [
    ("{{ raise_exception('no ' ~ messages[0].role) }}", "no system"),
    ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
    ("{{ messages[0].update(a=1) }}", "access to attribute 'update' of 'dict' object is unsafe."),
    ("{{ messages.__class__() }}", "access to attribute '__class__' of 'list' object is unsafe."),
    ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
    ("{{ messages[0].content.__add__(1) }}", "access to attribute '__add__' of 'str' object is unsafe."),
    ("{{ nothing.deeper }}", "'nothing' is undefined"),
    ("{{ messages[0].nothing.deeper }}", "'dict object' has no attribute 'nothing'"),
    ("{{ messages[0].content + messages }}", "can only concatenate str"),
    ("{% if %}", "Expected an expression, got 'end of statement block'"),
    ("{% for m in messages %}", "Unexpected end of template"),
    ("{% frobnicate %}", "Encountered unknown tag 'frobnicate'"),
    ("{{ 1 | nosuch }}", "No filter named 'nosuch'"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{% include 'x' %}", "no loader for this environment specified"),
    ("{% set n = namespace(_a=1) %}", "_a"),
    ("{% set n = namespace() %}{% set n._a = 1 %}", "_a"),
    ("{{ cycler.__init__() }}", "access to attribute '__init__'"),
    ("{{ lipsum() }}", "'lipsum' is undefined"),
]


def ours(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render({"messages": CHAT, "tools": TOOLS, "documents": None, **variables}, items=5)


@pytest.mark.parametrize("source", SAME)
def test_text_equals_transformers(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered, _ = utils.render_jinja_template(
        [CHAT], tools=TOOLS, documents=None, chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ours(source, add_generation_prompt=True, bos_token="<s>") == rendered[0]


@pytest.mark.parametrize(("source", "text"), REFUSED)
def test_refusals_are_400_with_the_innermost_text(source: str, text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ours(source)
    assert text in refused.value.message
    assert refused.value.param in ("messages", "chat_template")


def test_errors_name_no_addresses() -> None:
    with pytest.raises(BadRequest) as refused:
        ours("{{ raise_exception(messages.count ~ '') }}")
    assert "0x" not in refused.value.message


def test_variables_are_what_the_template_reads() -> None:
    template = ChatTemplate(
        "{% set own = 1 %}{{ own }}{{ bos_token }}{% for m in messages %}{{ m.role }}{{ namespace(x=1).x }}{% endfor %}{{ flag }}"
    )
    assert template.variables == {"bos_token", "messages", "flag"}


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}",
            "half an ans",
            "<user>q</user><assistant>half an ans",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}",
            "half  ",
            "<user>q</user><assistant>half  ",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}",
            "half  ",
            "<user>q</><assistant>half",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}",
            "",
            "<user>q</user><assistant>",
        ),
    ],
)
def test_open_end_is_cut_as_transformers_does(source: str, content: str, text: str) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    assert ChatTemplate(source).render_open({"messages": messages}, 2) == text
    assert messages[1]["content"] == content
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered, _ = utils.render_jinja_template([messages], chat_template=source, continue_final_message=True)
    assert rendered[0] == text


def test_open_end_in_parts_continues_the_last_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}, {"type": "image"}]
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text if p.text is defined else p.type }}]{% endfor %}{% endfor %}"
    assert ChatTemplate(source).render_open({"messages": [{"role": "assistant", "content": parts}]}, 1) == "[a][b "


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ messages[0].role }}", "text"),
        ("{{ messages[0].content }}", None),
        ("{{ messages[0].content[:1] }}", "text"),
    ],
)
def test_open_end_that_cannot_be_found_is_refused(source: str, content: str | None) -> None:
    with pytest.raises(BadRequest, match="continue_final_message") as refused:
        ChatTemplate(source).render_open({"messages": [{"role": "assistant", "content": content}]}, 1)
    assert refused.value.param == "continue_final_message"


def test_generation_blocks_are_found_where_they_stand() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}<e>{% endgeneration %}"
        "{% else %}<o>{{ m.content }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.has_generation_blocks
    messages = [
        {"role": r, "content": c} for r, c in (("user", "1"), ("assistant", "22"), ("user", "3"), ("assistant", ""))
    ]
    text, ranges = template.render_spans({"messages": messages}, 4)
    assert text == template.render({"messages": messages}, 4) == "<o>1<a>22<e><o>3<a><e>"
    assert [text[a:b] for a, b in ranges] == ["22<e>", "<e>"]


def test_ordinary_call_blocks_are_no_generation_blocks() -> None:
    assert not ChatTemplate(
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}"
    ).has_generation_blocks


def test_template_is_not_disturbed_by_its_variables() -> None:
    """A rendering leaves nothing behind: not in the template, not in what it was given."""
    template = ChatTemplate(
        "{% set messages = [] %}{% set ns = namespace(a=x) %}{% set ns.a = 2 %}{{ ns.a }}{{ messages }}{{ y }}"
    )
    given = {"messages": CHAT, "x": 1, "y": 3}
    before = json.dumps(given)
    assert template.render(given, 1) == template.render({**given, "y": 3}, 1) == "2[]3"
    assert json.dumps(given) == before


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_json_is_what_the_json_module_writes(value: Json) -> None:
    assert to_json(value) == json.dumps(value, ensure_ascii=False)
    assert to_json(value, separators=(",", ":")) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert to_json(value, indent=2) == json.dumps(value, ensure_ascii=False, indent=2)
