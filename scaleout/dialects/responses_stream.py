"""The events that build a response. They say what is new; what repeats the answer is left to `responses_gather`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from scaleout.core import AnswerHead, ChoiceDelta, DecodedPosition, Json, Usage
from scaleout.dialects.custom_input import CustomInput, dump_input, load_input
from scaleout.dialects.dialect import Request
from scaleout.dialects.items import Begin, End, Item, More, Progress, Step, dump_progress, load_progress
from scaleout.dialects.responses_answer import (
    CUT,
    echo_of,
    item_id,
    reasoning_part,
    text_part,
    write_item,
    write_logprobs,
    write_response,
)
from scaleout.dialects.responses_tools import Naming, naming_of
from scaleout.errors import BadState

# Phases of a stream.
_UNBEGUN, _RUNNING, _OVER = range(3)
_NO_ECHO: Mapping[str, Json] = echo_of(None)


@define
class _Carry:
    """What the events of one response must remember. `call` and `input` are of the call that is open; nothing grows with the answer."""

    progress: Progress = field(factory=Progress)
    phase: int = _UNBEGUN
    sequence: int = 0
    tokens: int = 0
    finish_reason: str | None = None
    naming: Naming = field(factory=Naming)
    call: tuple[str, str] = ("", "")
    input: CustomInput | None = None


def open_stream(request: Request | None) -> dict[str, Json]:
    """The `carry` before the first event."""
    return _dump(_Carry(naming=naming_of(echo_of(request).get("tools"))))


def chunk(
    head: AnswerHead, carry: dict[str, Json], delta: ChoiceDelta | None, usage: Usage | None
) -> tuple[dict[str, Json], list[Json]]:
    """The events of one delta; `delta` None ends the response with its status and usage, once.

    Texts in `….done` events, items that are done, and the output of the last response are empty: the deltas said it all, and
    `gather` knows them. So is what a response repeats of its request.
    """
    state = _load(carry)
    if state.phase == _OVER:
        return carry, []
    writer = _Writer(head, state)
    if state.phase == _UNBEGUN:
        state.phase = _RUNNING
        for name in ("response.created", "response.in_progress"):
            writer.say(name, response=write_response(head, _NO_ECHO, [], None, None))
    if delta is not None:
        state.tokens += len(delta.token_ids)
        writer.write_delta(delta)
    else:
        state.phase = _OVER
        writer.write_steps(state.progress.finish(cut=state.finish_reason is None), [])
        counted = usage or Usage(len(head.prompt_token_ids or ()), state.tokens)
        final = write_response(head, _NO_ECHO, [], state.finish_reason, counted)
        writer.say(f"response.{final['status']}", response=final)
    return _dump(state), writer.events


def says_something(delta: ChoiceDelta, carry: Mapping[str, Json]) -> bool:
    """Always: a delta that says nothing has no events."""
    return True


@define
class _Writer:
    """Events in the making."""

    head: AnswerHead
    state: _Carry
    events: list[Json] = field(factory=list)

    def say(self, name: str, **content: Json) -> None:
        self.events.append({"type": name, "sequence_number": self.state.sequence, **content})
        self.state.sequence += 1

    def write_delta(self, delta: ChoiceDelta) -> None:
        progress, logprobs = self.state.progress, write_logprobs(delta.logprobs)
        before, index = progress.open, progress.begun - 1
        steps = progress.take(delta.events)
        says_text = any(isinstance(step, More) and step.kind == "content" for step in steps)
        if logprobs and not says_text:
            # Text that is held back has its positions already.
            if before == "content":
                self._say_text(index, "", logprobs)
            elif not steps and _of_text(delta.logprobs):
                steps = [*progress.open_text(), More(progress.begun - 1, "content", "")]
        if delta.finish_reason is not None:
            self.state.finish_reason = delta.finish_reason
            steps += progress.finish(cut=delta.finish_reason in CUT)
        self.write_steps(steps, logprobs)

    def write_steps(self, steps: Sequence[Step], logprobs: list[Json]) -> None:
        for step in steps:
            if isinstance(step, Begin):
                self._begin(step)
            elif isinstance(step, End):
                self._end(step)
            elif step.kind == "content":
                self._say_text(step.index, step.text, logprobs)
                logprobs = []
            elif step.kind == "reasoning":
                self.say("response.reasoning_text.delta", **self._part_of(step), delta=step.text)
            else:
                self._say_arguments(step.index, step.text)

    def _say_text(self, index: int, text: str, logprobs: list[Json]) -> None:
        place = self._part_of(More(index, "content", text))
        self.say("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _say_arguments(self, index: int, text: str) -> None:
        if self.state.input is None:
            self.say("response.function_call_arguments.delta", **self._item_of(index, "call"), delta=text)
            return
        payload = self.state.input.feed(text)
        if payload:
            self.say("response.custom_tool_call_input.delta", **self._item_of(index, "call"), delta=payload)

    def _begin(self, step: Begin) -> None:
        if step.kind == "call":
            self.state.call = (step.id, step.name)
            self.state.input = CustomInput() if step.name in self.state.naming.custom else None
        item = Item(step.index, step.kind, step.id, step.name)
        wire = write_item(self.head, item, self.state.naming, [], "in_progress")
        self.say("response.output_item.added", output_index=step.index, item=wire)
        if step.kind != "call":
            part = text_part("", []) if step.kind == "content" else reasoning_part("")
            self.say("response.content_part.added", **self._part_of(step), part=part)

    def _end(self, step: End) -> None:
        place = self._item_of(step.index, step.kind)
        if step.kind == "content":
            self.say("response.output_text.done", **self._part_of(step), text="", logprobs=[])
            self.say("response.content_part.done", **self._part_of(step), part=text_part("", []))
        elif step.kind == "reasoning":
            self.say("response.reasoning_text.done", **self._part_of(step), text="")
            self.say("response.content_part.done", **self._part_of(step), part=reasoning_part(""))
        elif self.state.input is None:
            self.say("response.function_call_arguments.done", **place, arguments="")
        else:
            rest = self.state.input.finish()
            if rest:
                self.say("response.custom_tool_call_input.delta", **place, delta=rest)
            self.say("response.custom_tool_call_input.done", **place, input="")
        call_id, name = self.state.call if step.kind == "call" else ("", "")
        item = Item(step.index, step.kind, call_id, name, whole=step.whole)
        wire = write_item(self.head, item, self.state.naming, [])
        self.say("response.output_item.done", output_index=step.index, item=wire)
        self.state.call, self.state.input = ("", ""), None

    def _item_of(self, index: int, kind: str) -> dict[str, Json]:
        custom = kind == "call" and self.state.input is not None
        return {"item_id": item_id(self.head, index, kind, custom), "output_index": index}  # type: ignore[arg-type]

    def _part_of(self, step: Step) -> dict[str, Json]:
        return {**self._item_of(step.index, step.kind), "content_index": 0}


def _of_text(positions: Sequence[DecodedPosition] | None) -> bool:
    return any(p.region == "content" for p in positions or ())


def _dump(state: _Carry) -> dict[str, Json]:
    carry: dict[str, Json] = {
        "at": dump_progress(state.progress),
        "n": [state.phase, state.sequence, state.tokens],
        "end": state.finish_reason,
    }
    if state.naming.custom or state.naming.spaces:
        carry["names"] = [list(state.naming.custom), list(state.naming.spaces)]
    if state.progress.open == "call":
        carry["call"] = list(state.call)
    if state.input is not None:
        carry["input"] = dump_input(state.input)
    return carry


def _load(carry: Mapping[str, Json]) -> _Carry:
    """Raises `BadState` on anything that `_dump` cannot have written."""
    match carry:
        case {"at": at, "n": [int(phase), int(sequence), int(tokens)], "end": (str() | None) as reason} if phase in (
            _UNBEGUN,
            _RUNNING,
            _OVER,
        ):
            given_input = carry.get("input")
            return _Carry(
                load_progress(at),
                phase,
                max(sequence, 0),
                max(tokens, 0),
                reason,
                _load_naming(carry.get("names", [[], []])),
                _load_call(carry.get("call", ["", ""])),
                None if given_input is None else load_input(given_input),
            )
    raise BadState("stream_state: bad carry", "stream_state")


def _load_naming(value: Json) -> Naming:
    match value:
        case [list(custom), list(spaces)] if all(isinstance(name, str) for name in (*custom, *spaces)):
            return Naming(custom, spaces)
    raise BadState("stream_state: bad names", "stream_state")


def _load_call(value: Json) -> tuple[str, str]:
    match value:
        case [str(call_id), str(name)]:
            return call_id, name
    raise BadState("stream_state: bad call", "stream_state")
