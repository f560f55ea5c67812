"""An answer as items one after another: thoughts, texts and calls. What APIs show that have blocks instead of fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from attrs import define, frozen

from scaleout.core import CallAnswer, ChoiceAnswer, Content, Event, Json, Reasoning, ToolArguments, ToolEnd, ToolStart
from scaleout.errors import BadState

Kind = Literal["reasoning", "content", "call"]
_KINDS: tuple[Kind, ...] = ("reasoning", "content", "call")
MAX_ITEMS = 2**31


@frozen
class Begin:
    """Item number `index` begins. `id` and `name` are a call's."""

    index: int
    kind: Kind
    id: str = ""
    name: str = ""


@frozen
class More:
    """Text of the item that is open: a call's arguments as the model writes them."""

    index: int
    kind: Kind
    text: str


@frozen
class End:
    """The item is over. `whole`: it said what it had to say; False where the answer was cut or its call is damaged."""

    index: int
    kind: Kind
    whole: bool


Step = Begin | More | End


@define
class Progress:
    """How far a stream has come: how many items were begun, and which kind of item is open, if any."""

    begun: int = 0
    open: Kind | None = None

    def take(self, events: Iterable[Event]) -> list[Step]:
        """Events → what they begin, add to and end. An item ends where something else begins."""
        steps: list[Step] = []
        for event in events:
            match event:
                case Content(text):
                    self._add(steps, "content", text)
                case Reasoning(text):
                    self._add(steps, "reasoning", text)
                case ToolStart(_, call_id, name):
                    self._begin(steps, "call", call_id or "", name)
                case ToolArguments(_, text) if self.open == "call" and text:
                    self._more(steps, "call", text)
                case ToolEnd(_, status) if self.open == "call":
                    steps += self.close(status == "ok")
        return steps

    def finish(self, cut: bool) -> list[Step]:
        """The answer is over. `cut`: it did not come to its own end. A call that is still open never got its own."""
        return self.close(not cut and self.open != "call")

    def open_text(self) -> list[Step]:
        """Have a text open, though nothing is said yet."""
        steps: list[Step] = []
        if self.open != "content":
            self._begin(steps, "content")
        return steps

    def close(self, whole: bool) -> list[Step]:
        """End what is open."""
        if self.open is None:
            return []
        kind, self.open = self.open, None
        return [End(self.begun - 1, kind, whole)]

    def _add(self, steps: list[Step], kind: Kind, text: str) -> None:
        if not text:
            return
        if self.open != kind:
            self._begin(steps, kind)
        self._more(steps, kind, text)

    def _more(self, steps: list[Step], kind: Kind, text: str) -> None:
        """One step for neighbouring pieces: each is an event on the wire."""
        last = steps[-1] if steps else None
        if isinstance(last, More):
            steps[-1] = More(last.index, kind, last.text + text)
        else:
            steps.append(More(self.begun - 1, kind, text))

    def _begin(self, steps: list[Step], kind: Kind, call_id: str = "", name: str = "") -> None:
        # A call that something else interrupts never got its end.
        steps += self.close(self.open != "call")
        steps.append(Begin(self.begun, kind, call_id, name))
        self.begun, self.open = self.begun + 1, kind


def dump_progress(progress: Progress) -> list[Json]:
    return [progress.begun, None if progress.open is None else _KINDS.index(progress.open)]


def load_progress(value: Json) -> Progress:
    """Raises `BadState` on anything that `dump_progress` cannot have written."""
    match value:
        case [int(begun), None] if 0 <= begun < MAX_ITEMS:
            return Progress(begun)
        case [int(begun), int(kind)] if 0 < begun < MAX_ITEMS and 0 <= kind < len(_KINDS):
            return Progress(begun, _KINDS[kind])
    raise BadState("stream_state: bad carry", "stream_state")


# ---------------------------------------------------------------------------------------------- whole answers


@define
class Item:
    """One item of a whole answer. `text` is a call's arguments."""

    index: int
    kind: Kind
    id: str = ""
    name: str = ""
    text: str = ""
    whole: bool = True


def items_of(answer: ChoiceAnswer, cut: bool) -> list[Item]:
    """The items of a whole answer, in the order they were said. `cut`: the answer did not come to its own end."""
    progress = Progress()
    items: list[Item] = []
    for step in [*progress.take(answer.events or _in_order(answer)), *progress.finish(cut)]:
        match step:
            case Begin(index, kind, call_id, name):
                items.append(Item(index, kind, call_id, name))
            case More(_, _, text):
                items[-1].text += text
            case End(_, _, whole):
                items[-1].whole = whole
    return items


def _in_order(answer: ChoiceAnswer) -> list[Event]:
    """Where only the fields are known: thoughts, then text, then calls."""
    events: list[Event] = [Reasoning(answer.reasoning)] if answer.reasoning else []
    if answer.content:
        events.append(Content(answer.content))
    for i, call in enumerate(answer.tool_calls):
        events += _call(i, call)
    return events


def _call(index: int, call: CallAnswer) -> Sequence[Event]:
    start, arguments = ToolStart(index, call.id, call.name), ToolArguments(index, call.arguments)
    return (start, arguments, ToolEnd(index, call.status)) if call.status else (start, arguments)
