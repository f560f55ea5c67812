"""Which tokens of a prompt belong to which message, and which of them the model would have written itself.

A template with `{% generation %}` blocks says the latter. For any other it is proved: what the template writes for the conversation up
to a message, ready for the model to go on, has to be how the whole prompt begins; and a mark put into a message has to be the only
difference it makes. Where no proof succeeds the request is refused, since a mask that is wrong in silence is worse than none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from attrs import define, field

from scaleout.core import Json
from scaleout.errors import BadRequest

MAX_MESSAGES = 1000
"""A proof renders the conversation once or twice for each message."""

_MARK = "\udcfc"
_SPOKEN = ("reasoning_content", "content")
"""Where an assistant's own words are, in the order in which it said them."""

Offsets = Sequence[tuple[int, int]]


@define
class Conversation:
    """One rendered prompt and the means to render parts of it.

    `render(messages, add_generation_prompt)` gives text; `whole` is the prompt it gave for all `messages`. `open_end`: the last message
    is to be continued, so the prompt ends inside it. `offsets`: characters of `whole` per id. `eos`: ids that end an answer, with their
    spellings.
    """

    render: Callable[[list[dict[str, Any]], bool], str]
    messages: list[dict[str, Any]]
    whole: str
    add_generation_prompt: bool
    open_end: bool
    ids: Sequence[int]
    offsets: Offsets
    eos: Mapping[int, str]
    _beginnings: dict[tuple[int, bool], int | None] = field(factory=dict)

    def written_ranges(self) -> list[tuple[int, int]]:
        """Characters [start, end) that the model would have written, one range for each assistant message."""
        if len(self.messages) > MAX_MESSAGES:
            raise BadRequest(
                f"Tokens of a conversation of more than {MAX_MESSAGES} messages are only attributed for chat templates "
                "with generation blocks.",
                "messages",
            )
        return [self._written(k) for k, message in enumerate(self.messages) if message["role"] == "assistant"]

    def message_starts(self, written: Sequence[tuple[int, int]]) -> list[int]:
        """Where each message's text begins, and where the last one's ends. What the template puts first belongs to the first."""
        starts = [0]
        for k in range(1, len(self.messages)):
            start = self._beginning(k, False)
            if start is None and self.messages[k - 1]["role"] == "assistant":
                start = next((self._behind_space(end) for begin, end in written if begin >= starts[-1]), None)
            if start is None or start < starts[-1]:
                raise _unproved(k, "where its tokens begin", "return_spans")
            starts.append(start)
        end = len(self.whole) if self.open_end else self._beginning(len(self.messages), False)
        return [*starts, len(self.whole) if end is None else end]

    def _behind_space(self, place: int) -> int:
        """A turn's closing line break is its own, not the next one's."""
        return len(self.whole) - len(self.whole[place:].lstrip())

    def _written(self, k: int) -> tuple[int, int]:
        start = self._beginning(k, True) if k else None
        if start is None:
            start = self._first_word(k)
        if start is None:
            raise _unproved(k, "which of its tokens the model would have written")
        last = k + 1 == len(self.messages)
        if last and self.open_end:
            return start, len(self.whole)
        limit = self._beginning(k + 1, False)
        if limit is None and not last:
            limit = self._place_of_mark(k + 1, "content", "before")
        if limit is None or limit < start:
            raise _unproved(k, "where its tokens end")
        spoken_end = start
        if any(text in str(self.messages[k].get(name)) for name in _SPOKEN for text in self.eos.values()):
            spoken_end = self._last_word(k)
        for id, (begin, end) in zip(self.ids, self.offsets, strict=True):
            if id in self.eos and begin >= spoken_end and end <= limit:
                return start, end
        return start, max(start, self._last_word(k))

    def _first_word(self, k: int) -> int | None:
        for name in _SPOKEN:
            if self.messages[k].get(name):
                place = self._place_of_mark(k, name, "before")
                if place is not None:
                    return place
        return None

    def _last_word(self, k: int) -> int:
        place = self._place_of_mark(k, "content", "behind")
        if place is None:
            raise _unproved(k, "where its content ends")
        return place

    def _beginning(self, count: int, ready: bool) -> int | None:
        """Length of the prompt for the first `count` messages if the whole one begins with it. `ready` for the model to go on."""
        key = (count, ready)
        if key not in self._beginnings:
            self._beginnings[key] = self._measure_beginning(count, ready)
        return self._beginnings[key]

    def _measure_beginning(self, count: int, ready: bool) -> int | None:
        try:
            text = self.render(self.messages[:count], ready)
        except BadRequest:  # templates may refuse a conversation that stops there
            return None
        return len(text) if self.whole.startswith(text) else None

    def _place_of_mark(self, k: int, name: str, where: Literal["before", "behind"]) -> int | None:
        """Where a mark before or behind a text of message `k` shows up, if that is all it changes."""
        marked = _with_mark(self.messages[k], name, where)
        if marked is None:
            return None
        try:
            text = self.render([*self.messages[:k], marked, *self.messages[k + 1 :]], self.add_generation_prompt)
        except BadRequest:
            return None
        before, mark, behind = text.partition(_MARK)
        whole = self.whole
        same = before + behind == whole if not self.open_end else (before + behind).startswith(whole)
        return len(before) if mark and same else None


def _with_mark(message: Mapping[str, Any], name: str, where: str) -> dict[str, Any] | None:
    value = message.get(name)
    if isinstance(value, str):
        return {**message, name: _MARK + value if where == "before" else value + _MARK}
    if isinstance(value, list):
        places = [i for i, part in enumerate(value) if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if places:
            i = places[0] if where == "before" else places[-1]
            text = value[i]["text"]
            part = {**value[i], "text": _MARK + text if where == "before" else text + _MARK}
            return {**message, name: [*value[:i], part, *value[i + 1 :]]}
    return None


def _unproved(k: int, what: str, param: str = "return_assistant_tokens_mask") -> BadRequest:
    return BadRequest(f"The chat template leaves it open, for messages[{k}], {what}.", param)


def mask_of(offsets: Offsets, written: Sequence[tuple[int, int]], *, overlapping: bool) -> list[int]:
    """1 for each token within one of the ranges, which are in order.

    `overlapping` counts tokens that begin before a range and reach into it, as transformers does for generation blocks; a proof does
    not, because the model could not have written a token whose beginning was given.
    """
    mask = [0] * len(offsets)
    at = 0
    for i, (begin, end) in enumerate(offsets):
        while at < len(written) and begin >= written[at][1]:
            at += 1
        if at == len(written):
            break
        start = written[at][0]
        if (begin >= start and end > begin) or (overlapping and end > start):
            mask[i] = 1
    return mask


def spans_of(
    offsets: Offsets, mask: Sequence[int], starts: Sequence[int], roles: Sequence[str], indices: Sequence[int]
) -> list[Mapping[str, Json]]:
    """Runs of tokens [start, end) with one message and one answer to "would the model have written it".

    `starts` has one entry more than there are messages; what comes behind the last belongs to none (the opening of the next answer).
    """
    spans: list[dict[str, Json]] = []
    for i, (begin, end) in enumerate(offsets):
        position = bisect_right(starts, begin) - 1
        inside = position < len(roles) and end > begin
        if not inside and spans and end == begin and position < len(roles):
            spans[-1]["end"] = i + 1
            continue
        message = indices[position] if inside else None
        sampled = bool(mask[i])
        if spans and spans[-1]["message"] == message and spans[-1]["sampled"] == sampled:
            spans[-1]["end"] = i + 1
        else:
            role = roles[position] if inside else None
            spans.append({"start": i, "end": i + 1, "message": message, "role": role, "sampled": sampled})
    return spans  # type: ignore[return-value]


def cut_spans(spans: Sequence[Mapping[str, Json]], kept: Sequence[int]) -> list[Mapping[str, Json]]:
    """Spans of the tokens at the positions `kept`, which are in order."""
    result: list[Mapping[str, Json]] = []
    for span in spans:
        start, end = bisect_left(kept, span["start"]), bisect_left(kept, span["end"])
        if end > start:
            result.append({**span, "start": start, "end": end})
    return result
