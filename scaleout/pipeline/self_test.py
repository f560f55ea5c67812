"""Does the output format fit the model? Its own template writes a turn of the model, and derender must read that back."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from attrs import evolve, frozen

from scaleout import codec
from scaleout.core import (
    ChatRequest,
    ChoiceAnswer,
    Json,
    Message,
    RequestOptions,
    TokenDelta,
    Tool,
    ToolCall,
    ToolChoice,
)
from scaleout.derender import fold
from scaleout.errors import BadRequest

if TYPE_CHECKING:
    from scaleout.pipeline.stages import Front

LOG = logging.getLogger(__name__)

Verdict = Literal["PASS", "FAIL", "UNKNOWN"]

ASKED = Message("user", "What is the weather in Oslo, and how late is it in Rome?")
REASONING = "They ask about two cities."
CONTENT = "Here is what I know."
CALLS: Sequence[tuple[str, Mapping[str, Json]]] = (
    ("get_weather", {"city": "Oslo", "days": 3}),
    ("get_time", {"zone": "Rome"}),
)
TOOLS = [
    Tool(
        "get_weather",
        "Weather of a city",
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    Tool("get_time", "Time of a zone", {"type": "object", "properties": {"zone": {"type": "string"}}}),
]
REQUEST = ChatRequest([ASKED], tools=TOOLS, tool_choice=ToolChoice("auto"), options=RequestOptions())

NINE_LETTERS = ("wEaTher01", "tImeZone2")
"""Call ids that every template takes. Some write them into the turn, where their models write ids that tell the call's name."""
TELLING = tuple(f"functions.{name}:{i}" for i, (name, _) in enumerate(CALLS))
MAX_SHOWN = 400
"""Characters of a reason."""


@frozen
class Finding:
    """`UNKNOWN`: the template writes no such turn, so nothing can be said. `reason` is empty for PASS."""

    capability: str
    verdict: Verdict
    reason: str = ""


@frozen
class Turn:
    """What a model might say."""

    reasoning: str | None = None
    content: str | None = CONTENT
    calls: int = 0

    def message(self, ids: Sequence[str]) -> Message:
        calls = [ToolCall(id, *call) for id, call in zip(ids, CALLS[: self.calls], strict=False)]
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=calls)

    def words(self) -> list[str]:
        """What must stand in the turn's text if the template writes all of it."""
        calls = [word for name, arguments in CALLS[: self.calls] for word in (name, *map(str, arguments.values()))]
        return [*calls, *filter(None, (self.reasoning, self.content))]

    def says(self, answer: ChoiceAnswer) -> bool:
        """Whether the texts are right, blanks around them aside."""
        texts = (answer.reasoning or "").strip(), (answer.content or "").strip()
        return texts == (self.reasoning or "", self.content or "")

    def calls_in(self, answer: ChoiceAnswer) -> bool:
        """Whether the calls are right, and nothing of them is text. What else is in the text is no matter here."""
        calls = [(call.name, codec.loads(call.arguments)) for call in answer.tool_calls if call.status == "ok"]
        text = f"{answer.reasoning} {answer.content}"
        return calls == list(CALLS[: self.calls]) and not any(name in text for name, _ in CALLS)


TEXTS: Mapping[str, Sequence[Turn]] = {
    "content": (Turn(),),
    "reasoning": (Turn(REASONING), Turn(REASONING, "", 2), Turn(REASONING, None, 1)),
}
CALLED: Mapping[str, Sequence[Turn]] = {
    name: tuple(Turn(None, content, count) for content in ("", None, CONTENT))
    for name, count in (("one call", 1), ("two calls", 2))
}
"""For each capability the turns that show it. The first one that the template writes decides."""


IsRight = Callable[[Turn, ChoiceAnswer], bool]


def examine_format(front: Front) -> list[Finding]:
    """A finding per capability, each with its line in the log. Nothing where no format is chosen. Never raises."""
    if front.derenderer.format is None:
        return []
    try:
        findings = [
            *(_examine(front, capability, turns, Turn.says) for capability, turns in TEXTS.items()),
            *(_examine(front, capability, turns, Turn.calls_in) for capability, turns in CALLED.items()),
        ]
    # Of every kind, since the model's own files are tried here beside the serving: a tokenizer or template that none of ours ever met may
    # raise anything. The server serves all the same; that it does not know itself stands in the log, with the trace.
    except Exception:
        LOG.warning("the self-test of the output format failed", exc_info=True)
        return []
    for finding in findings:
        level = logging.WARNING if finding.verdict == "FAIL" else logging.INFO
        because = f" ({finding.reason})" if finding.reason else ""
        LOG.log(level, "self-test: %s: %s%s", finding.capability, finding.verdict, because)
    return findings


def _examine(front: Front, capability: str, turns: Sequence[Turn], is_right: IsRight) -> Finding:
    reason = "the template writes no such turn"
    for turn in turns:
        try:
            failure = _try(front, turn, is_right)
        except BadRequest as error:
            reason = _cut(f"the template refuses such a turn: {error.message.partition('. ')[0]}")
            continue
        if failure == "":
            return Finding(capability, "PASS")
        if failure is not None:
            return Finding(capability, "FAIL", failure)
    return Finding(capability, "UNKNOWN", reason)


def _try(front: Front, turn: Turn, is_right: IsRight) -> str | None:
    """What is wrong with the way this turn is read: "" for nothing, None where the template does not write it."""
    failure = None
    for ids in (NINE_LETTERS, TELLING) if turn.calls else (NINE_LETTERS,):
        written = _write(front, turn, ids)
        if written is None:
            continue
        answer = _read(front, *written)
        if is_right(turn, answer):
            return ""
        failure = failure or _cut(f"{written[1]!r} reads as {_show(answer)}")
    return failure


def _write(front: Front, turn: Turn, ids: Sequence[str]) -> tuple[str, str] | None:
    """The prompt, and behind it the turn as the model would write it; None where the template leaves something out."""
    prompt = front.renderer.render_prompt(REQUEST).text
    said = evolve(REQUEST, messages=[ASKED, turn.message(ids)], add_generation_prompt=False)
    whole = front.renderer.render_prompt(said).text
    if not whole.startswith(prompt):
        # The prompt opens something that this turn does not have, a thought most likely. What they share ends before a marker.
        length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
        ends = [found.end() for found in re.finditer(r"[\s>\]|｜]", prompt[:length])]
        prompt = prompt[: ends[-1]] if ends else ""
    if str(ASKED.content) not in prompt:
        return None
    answer = whole[len(prompt) :]
    return (prompt, answer) if all(word in answer for word in turn.words()) else None


def _read(front: Front, prompt: str, text: str) -> ChoiceAnswer:
    derenderer = front.derenderer
    assert derenderer.format is not None
    tokenizer = derenderer.tokenizer
    before, whole = tokenizer.encode(prompt, False), tokenizer.encode(prompt + text, False)
    ids = whole[len(before) :] if whole[: len(before)] == before else tokenizer.encode(text, False)
    ends = {*derenderer.end_ids, *(tokenizer.id_of(token) for token in derenderer.format.end_tokens)}
    length = next((i + 1 for i, one in enumerate(ids) if one in ends), len(ids))
    state = derenderer.begin(REQUEST, before, "self-test")
    return fold([derenderer.feed(state, TokenDelta(0, ids[:length], finish_reason="stop"))])


def _show(answer: ChoiceAnswer) -> str:
    calls = [f"{call.name}({call.arguments})" for call in answer.tool_calls]
    return f"reasoning={answer.reasoning!r} content={answer.content!r} calls={calls}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
