"""Putting media into a prompt: marks in templates that see text alone, placeholders made longer, and where the slots end up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from scaleout.core import Features, MediaFeature, Part
from scaleout.core.media import MediaRef
from scaleout.errors import BadRequest
from scaleout.render.media_parts import read_media
from scaleout.render.multimodal import Multimodal, Prepared

_SECRET = secrets.token_hex(8)
"""So that nobody can write a mark."""

Offsets = Sequence[tuple[int, int]]


@define
class MediaParts:
    """Reads the media parts of one conversation, in order. `refs` is what it found."""

    multimodal: Multimodal
    model_name: str
    refs: list[MediaRef] = field(factory=list)

    def take(self, part: Part, path: str) -> dict[str, Any]:
        """What a template sees of a media part. Raises `BadRequest` for kinds that the model does not take."""
        ref = read_media(part, path)
        self.multimodal.require(ref.modality, self.model_name)
        self.refs.append(ref)
        return {"type": ref.modality}

    def as_text(self, parts: Sequence[Mapping[str, Any]]) -> str:
        """A content for templates that see text alone: items in front of the text, or where they were if that is wanted."""
        if self.multimodal.settings.interleave_strings:
            pieces = [part["text"] if part["type"] == "text" else _mark(part["type"]) for part in parts]
        else:
            marks = [_mark(part["type"]) for part in parts if part["type"] in self.multimodal.kinds]
            pieces = [*marks, *(part["text"] for part in parts if part["type"] == "text")]
        return "\n".join(filter(None, pieces))


def _mark(kind: str) -> str:
    return f"\ufdd2{_SECRET}{kind}\ufdd3"


@frozen
class _Stretch:
    """A placeholder and what it became: places in the text before, and in the text behind."""

    start: int
    end: int
    new_start: int
    new_end: int


@define
class Expanded:
    """A templated text with its placeholders expanded, each run of slots written once."""

    text: str
    prepared: Sequence[Prepared]
    runs: list[tuple[int, int, str]] = field(factory=list)
    """Index of the item, how many slots, and their token."""
    stretches: list[_Stretch] = field(factory=list)
    plain: str = ""
    """The text with one placeholder for each item."""


def show_placeholders(text: str, multimodal: Multimodal) -> str:
    """A templated text with one placeholder for each item, also where the template saw nothing but marks."""
    for kind, modality in multimodal.kinds.items():
        text = text.replace(_mark(kind), modality.slots.text)
    return text


def expand(text: str, multimodal: Multimodal, prepared: Sequence[Prepared]) -> Expanded:
    """Raises `BadRequest` where the template wrote fewer or more placeholders than there are items."""
    slots = {kind: modality.slots for kind, modality in multimodal.kinds.items()}
    text = show_placeholders(text, multimodal)
    waiting = {kind: [i for i, one in enumerate(prepared) if one.ref.modality == kind] for kind in slots}
    result = Expanded("", prepared, plain=text)
    pieces: list[str] = []
    position = length = 0
    kind_of = {own.token: kind for kind, own in slots.items()}
    for found in re.finditer("|".join(map(re.escape, kind_of)), text):
        kind = kind_of[found[0]]
        if not waiting[kind]:
            raise BadRequest(
                f"Found more '{found[0]}' placeholders in input prompt than actual multimodal data items.", "messages"
            )
        index = waiting[kind].pop(0)
        written = ""
        for piece in prepared[index].item.expansion:
            if isinstance(piece, str):
                written += piece
            elif piece.count:
                written += piece.token
                result.runs.append((index, piece.count, piece.token))
        pieces += (text[position : found.start()], written)
        length += found.start() - position
        result.stretches.append(_Stretch(found.start(), found.end(), length, length + len(written)))
        length += len(written)
        position = found.end()
    left = sum(map(len, waiting.values()))
    if left:
        raise BadRequest(
            f"The chat template wrote no placeholder for {left} of {len(prepared)} media items: it cannot show them where they are.",
            "messages",
        )
    result.text = "".join([*pieces, text[position:]])
    return result


def place(
    ids: Sequence[int], offsets: Offsets | None, done: Expanded, id_of: Mapping[str, int], payload: str
) -> tuple[list[int], Offsets | None, Features]:
    """Ids with every run at its length, offsets into the text before the expansion, and the items at their places."""
    slot_ids = frozenset(id_of[token] for _, _, token in done.runs)
    out: list[int] = []
    counts: list[int] = []
    spans: dict[int, tuple[int, int]] = {}
    runs = iter(done.runs)
    for one in ids:
        count = 1
        if one in slot_ids:
            index, count, token = next(runs, (-1, 0, ""))
            if id_of.get(token) != one:
                raise BadRequest("The prompt holds placeholders of media in places where none belong.", "messages")
            first = spans[index][0] if index in spans else len(out)
            spans[index] = (first, len(out) + count)
        out += [one] * count
        counts.append(count)
    if next(runs, None) is not None or len(spans) < len(done.prepared):
        raise BadRequest("The tokenizer does not keep the placeholders of all media items.", "messages")
    items: list[MediaFeature] = [
        done.prepared[index].feature(start, end - start)
        for index, (start, end) in sorted(spans.items(), key=lambda s: s[1])
    ]
    features = Features(items, payload)  # type: ignore[arg-type]
    if offsets is None:
        return out, None, features
    moved = _before_expansion(offsets, done.stretches)
    return out, [span for span, count in zip(moved, counts, strict=True) for _ in range(count)], features


def expand_ids(
    ids: Sequence[int], multimodal: Multimodal, prepared: Sequence[Prepared], encode: Callable[[str], Sequence[int]]
) -> tuple[list[int], Features]:
    """Ids in which each placeholder is made longer, as `place` does with text.

    Raises `BadRequest` where there are fewer or more placeholders than items.
    """
    kind_of = {encode(modality.slots.token)[0]: kind for kind, modality in multimodal.kinds.items()}
    waiting = {kind: [one for one in prepared if one.ref.modality == kind] for kind in multimodal.kinds}
    out: list[int] = []
    items: list[MediaFeature] = []
    for one in ids:
        kind = kind_of.get(one)
        if kind is None:
            out.append(one)
            continue
        if not waiting[kind]:
            raise BadRequest(
                f"token_ids hold more placeholders for {kind} input than content_parts hold items.", "token_ids"
            )
        item = waiting[kind].pop(0)
        start, end = -1, -1
        for piece in item.item.expansion:
            if isinstance(piece, str):
                out += encode(piece)
            elif piece.count:
                start = len(out) if start < 0 else start
                out += [encode(piece.token)[0]] * piece.count
                end = len(out)
        items.append(item.feature(start, end - start))
    if any(waiting.values()):
        raise BadRequest("token_ids hold fewer placeholders than content_parts hold items.", "token_ids")
    return out, Features(items)


def _before_expansion(offsets: Offsets, stretches: Sequence[_Stretch]) -> list[tuple[int, int]]:
    """Offsets in the expanded text → offsets in the text before. All of an expansion stands where its placeholder stood."""
    result = []
    passed = 0
    for start, end in offsets:
        while passed < len(stretches) and start >= stretches[passed].new_end:
            passed += 1
        shift = stretches[passed - 1].end - stretches[passed - 1].new_end if passed else 0
        here = stretches[passed] if passed < len(stretches) else None
        if here is None or end <= here.new_start:
            result.append((start + shift, end + shift))
        else:
            begins = start + shift if start < here.new_start else here.start
            ends = here.end if end <= here.new_end else here.end + end - here.new_end
            result.append((begins, ends))
    return result
