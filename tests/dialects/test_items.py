"""Answers as items: what begins, goes on and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import CallAnswer, ChoiceAnswer, Content, Event, Reasoning, ToolArguments, ToolEnd, ToolStart
from scaleout.dialects.items import Begin, End, More, Progress, Step, dump_progress, items_of, load_progress
from scaleout.errors import BadState

from .said import answers


def test_items_follow_each_other() -> None:
    progress = Progress()
    events = [
        *(Reasoning("a"), Reasoning("b"), Content(""), Content("c")),
        *(ToolStart(0, "id", "f"), ToolArguments(0, "{"), ToolArguments(0, "}"), ToolEnd(0, "ok")),
        *(ToolStart(1, None, "g"), ToolEnd(1, "unclosed"), Content("d")),
    ]
    assert progress.take(events) == [
        *(Begin(0, "reasoning"), More(0, "reasoning", "ab"), End(0, "reasoning", True)),
        *(Begin(1, "content"), More(1, "content", "c"), End(1, "content", True)),
        *(Begin(2, "call", "id", "f"), More(2, "call", "{}"), End(2, "call", True)),
        *(Begin(3, "call", "", "g"), End(3, "call", False)),
        *(Begin(4, "content"), More(4, "content", "d")),
    ]
    assert progress == Progress(5, "content")
    assert progress.finish(cut=True) == [End(4, "content", False)]
    assert progress.finish(cut=True) == []


@pytest.mark.parametrize("events", [[ToolArguments(0, "x")], [ToolEnd(0, "ok")], [Content("a"), ToolEnd(0, "ok")]])
def test_events_of_a_call_that_never_began_do_no_harm(events: list[Event]) -> None:
    steps = Progress().take(events)
    assert all(step.kind == "content" for step in steps)


def test_a_call_that_is_interrupted_is_not_whole() -> None:
    progress = Progress()
    assert End(0, "call", False) in progress.take([ToolStart(0, "i", "f"), ToolArguments(0, "{"), Content("x")])
    progress = Progress()
    progress.take([ToolStart(0, "i", "f")])
    assert progress.finish(cut=False) == [End(0, "call", False)]


@given(answers(), st.data())
def test_steps_do_not_depend_on_the_cut(events: list[Event], data: st.DataObject) -> None:
    whole = Progress()
    expected = whole.take(events)
    progress = Progress()
    steps: list[Step] = []
    for event in events:
        for step in progress.take([event]):
            last = steps[-1] if steps else None
            if isinstance(step, More) and isinstance(last, More):
                steps[-1] = More(step.index, step.kind, last.text + step.text)
            else:
                steps.append(step)
        progress = load_progress(dump_progress(progress))
    assert steps == expected
    assert progress == whole


def test_an_answer_of_fields_alone_has_items_too() -> None:
    answer = ChoiceAnswer(0, "hm", "hi", [CallAnswer("c", "f", "{}", "ok"), CallAnswer("d", "g", "{")])
    assert [(i.kind, i.id, i.name, i.text, i.whole) for i in items_of(answer, cut=False)] == [
        ("reasoning", "", "", "hm", True),
        ("content", "", "", "hi", True),
        ("call", "c", "f", "{}", True),
        ("call", "d", "g", "{", False),
    ]


@pytest.mark.parametrize("state", [None, [], [1], [0, 0], [-1, None], [1, 3], [1, "content"], [2**31, None], {"a": 1}])
def test_a_damaged_progress_is_refused(state: object) -> None:
    with pytest.raises(BadState):
        load_progress(state)
