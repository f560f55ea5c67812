"""A runaway template ends with a 400, quickly and without the memory it asked for."""

# ruff: noqa: E501 - one template a line

from __future__ import annotations

import time
import tracemalloc

import pytest

from scaleout.errors import BadRequest
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.template_bounds import Budget, TemplateLimits, TemplateOverrun

RUNAWAYS = {
    "nested loops": "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}",
    "loop that filters all": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loop that always filters": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2, 3]) }}{% endfor %}",
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "caller": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% macro g(n) %}{% call f() %}{{ g(n - 1) if n }}{% endcall %}{% endmacro %}{{ g(40) }}",
    "text times a number": "{{ 'x' * 10 ** 10 }}",
    "number times text": "{{ 10 ** 10 * 'x' }}",
    "list times a number": "{{ [1] * 10 ** 10 }}",
    "doubled text": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled text with ~": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled text in a block": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = s %}{% endfor %}",
    "doubled list": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "squared number": "{% set n = namespace(s=3) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "output": "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    "ljust": "{{ 'x'.ljust(10 ** 10) }}",
    "ljust as an item": "{{ 'x'['ljust'](10 ** 10) }}",
    "ljust by the attr filter": "{{ ('x' | attr('ljust'))(10 ** 10) }}",
    "ljust by map": "{{ (['x'] | map(attribute='ljust') | first)(10 ** 10) }}",
    "ljust of bytes": "{{ 'x'.encode().ljust(10 ** 10) }}",
    "zfill": "{{ 'x'.zfill(10 ** 10) }}",
    "replace": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "replace nothing": "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
    "replace filter": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "join": "{{ ('y' * 100000).join(('x ' * 100000).split()) }}",
    "join filter": "{{ range(99999) | join('x' * 100000) }}",
    "translate": "{{ ('x' * 100000).translate({120: 'y' * 100000}) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 10) }}",
    "center filter": "{{ 'x' | center(10 ** 10) }}",
    "indent filter": "{{ 'x' | indent(10 ** 10, true) }}",
    "tojson filter": "{{ [1] | tojson(indent=10 ** 9) }}",
    "slice filter": "{{ [1] | slice(10 ** 9) | list }}",
    "batch filter": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "round filter": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "list filter": "{{ ('x' * 2000000) | list }}",
    "split": "{{ ('x ' * 3000000).split() }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "percent format with a star": "{{ '%*d' % (10 ** 9, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "format with a width from outside": "{{ '{:>{w}}'.format(1, w=10 ** 9) }}",
    "bytes of a number": "{{ (5).to_bytes(10 ** 10, 'big') }}",
    "large range": "{{ range(10 ** 9) | list }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long source": "x" * (2 << 20),
}


COUNTED = ("nested loops", "branching macro", "caller")
"""Ended by their number of steps; the others ask for memory."""


@pytest.mark.parametrize("name", RUNAWAYS)
def test_runaway_template_ends(name: str) -> None:
    started = time.thread_time()
    with pytest.raises(BadRequest) as refused:
        ChatTemplate(RUNAWAYS[name], TemplateLimits(max_chars=8 << 20)).render({"messages": []}, items=1)
    assert time.thread_time() - started < 2
    assert refused.value.status == 400
    assert refused.value.param in ("chat_template", "messages")


@pytest.mark.parametrize("name", [name for name in RUNAWAYS if name not in COUNTED])
def test_runaway_template_gets_no_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            ChatTemplate(RUNAWAYS[name], TemplateLimits(max_chars=8 << 20)).render({"messages": []}, items=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20


def test_a_billion_steps() -> None:
    template = ChatTemplate(RUNAWAYS["nested loops"])
    started = time.thread_time()
    with pytest.raises(BadRequest, match="more than 101001 steps") as refused:
        template.render({"messages": []}, items=1)
    assert time.thread_time() - started < 0.5
    assert refused.value.param == "chat_template"


def test_seconds_are_bounded_too() -> None:
    slow = "{% set s = 'ab' * 500000 %}{% for a in range(90000) %}{% set t = s | upper | lower %}{% endfor %}"
    with pytest.raises(BadRequest, match=r"more than 0\.2 s"):
        ChatTemplate(slow, TemplateLimits(seconds=0.2)).render({"messages": []}, items=1)


def test_long_conversations_have_more_steps() -> None:
    looped = ChatTemplate("{% for m in messages %}{% for c in range(900) %}{% endfor %}{% endfor %}done")
    assert looped.render({"messages": [0] * 2000}, items=2000) == "done"
    with pytest.raises(BadRequest, match="steps"):
        looped.render({"messages": [0] * 2000}, items=1)


def test_quadratic_templates_pass() -> None:
    quadratic = ChatTemplate("{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}done")
    assert quadratic.render({"messages": [0] * 1500}, items=1500) == "done"


def test_budget_counts_every_step() -> None:
    budget = Budget(TemplateLimits(), 512)
    for _ in range(512):
        assert next(budget.steps) is True
    with pytest.raises(TemplateOverrun):
        next(budget.steps)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' * 3 }}{{ 2 * 3 }}{{ [1] * 2 }}", "ababab6[1, 1]"),
        ("{{ 2 ** 10 }}{{ 2.0 ** 0.5 > 1 }}", "1024True"),
        ("{{ 7 % 4 }}{{ '%05.1f|%s' % (2.25, 'x') }}", "3002.2|x"),
        ("{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"),
        ("{{ 'a-b'.replace('-', '+').center(7, '.') }}", "..a+b.."),
        ("{{ 'a,b'.split(',') }}{{ 'x y'.split() }}", "['a', 'b']['x', 'y']"),
        ("{{ '{:>4}|{}'.format('a', 1) }}", "   a|1"),
        ("{{ '-'.join(['a', 'b']) }}{{ [1, 2] | join('/') }}", "a-b1/2"),
        ("{{ [{'n': 1}, {'n': 2}] | join('/', attribute='n') }}", "1/2"),
        ("{{ range(5) | batch(2, 'x') | list }}", "[[0, 1], [2, 3], [4, 'x']]"),
        ("{{ 'abc' | list }}{{ (1, 2) | list }}", "['a', 'b', 'c'][1, 2]"),
        ("{{ 2.5 | round }} {{ 2.45 | round(1, 'floor') }}", "2.0 2.4"),
        ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
        ("{{ '%s!' | format('x') }}{{ 'x' | attr('upper') }}", "x!"),
    ],
)
def test_measured_operations_do_what_they_always_do(source: str, text: str) -> None:
    assert ChatTemplate(source).render({"messages": []}).startswith(text)
