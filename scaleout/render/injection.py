"""Control tokens come from the template only: text that spells a special token stays text.

Before templating, the first character of every such spelling in supplied text is replaced by a private mark; a beginning of one at
the end of a text is marked too, because the next text could complete it. After templating, the special tokens that are still
spelled out are the template's own. They get names nobody can write, the marks become characters again, and one encoding of the
whole prompt, by a copy of the tokenizer that knows only those names, gives the ids. Text without such spellings takes the plain way.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import define, frozen
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from scaleout.codec import dumps
from scaleout.core import Json
from scaleout.errors import BadRequest
from scaleout.render.spellings import longest_of
from scaleout.tokenizer import Tokenizer

_FIRST_MARK = 0xDC00
_MARKS = 0xF0
"""Lone surrogates serve as marks, since no supplied text can hold one. The last few of the row mark other things."""

ROLES = frozenset({"system", "user", "assistant", "tool", "developer", "function", "model", "observation", "ipython"})
"""Roles that templates compare with; any other role is text like the rest."""


class ControlTokens:
    """The special tokens of one vocabulary: how they are spelled, marked in supplied text, and encoded. Immutable."""

    def __init__(
        self,
        added_tokens: Mapping[int, str],
        special_ids: frozenset[int],
        backend: Backend | None = None,
        slots: frozenset[str] = frozenset(),
    ) -> None:
        """`slots` stand for media: in the assistant's own words, too, they are text."""
        special_ids |= {id for id, text in added_tokens.items() if text in slots}
        self._slots = longest_of(slots) if slots else None
        self.ids = {text: id for id, text in added_tokens.items() if id in special_ids and text}
        self._backend = backend
        self._special_ids = special_ids
        self._spellings = longest_of(self.ids)
        self._added = longest_of(text for text in added_tokens.values() if text)
        self._beginnings = frozenset(text[:end] for text in self.ids for end in range(1, len(text)))
        self._longest = max(map(len, self.ids), default=1) - 1
        self._firsts = sorted({text[0] for text in self.ids})[:_MARKS]
        self._mark_of = {first: chr(_FIRST_MARK + i) for i, first in enumerate(self._firsts)}
        self._text_of = {ord(mark): first for first, mark in self._mark_of.items()}
        self._firsts_in_json = [first.encode() for first in self._firsts]
        self._shows_in_json = all(first >= " " for first in self._firsts)
        """JSON writes no other character than control characters in another way, or not without the character itself."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, slots: frozenset[str] = frozenset()) -> ControlTokens:
        return cls(tokenizer.added_tokens, tokenizer.special_ids, tokenizer.library, slots)

    def may_spell(self, text: str) -> bool:
        """Whether `text` holds a character with which some special token begins. Most text does not."""
        for first in self._firsts:  # noqa: SIM110 - any() would cost more than the search
            if first in text:
                return True
        return False

    def any_may_spell(self, value: Json) -> bool:
        """The same of all texts in a JSON value, without a look at each of them."""
        try:
            written = dumps(value) if self._shows_in_json else None
        except TypeError:  # half a surrogate pair, or a number of more than 64 bits
            written = None
        return written is None or any(first in written for first in self._firsts_in_json)

    def find(self, text: str) -> tuple[int, list[int]]:
        """How many special tokens `text` spells, and every position where one begins, inside others too."""
        spelled = 0
        places: list[int] = []
        for match in self._spellings.finditer(text):
            spelled += 1
            places.append(match.start())
            for place in range(match.start() + 1, match.end()):
                if text[place] in self._mark_of and self._spellings.match(text, place):
                    places.append(place)
        return spelled, places

    def find_slots(self, text: str) -> list[int]:
        """Where `text` spells a token that stands for media."""
        return [found.start() for found in self._slots.finditer(text)] if self._slots is not None else []

    def open_ends(self, text: str) -> list[int]:
        """Positions in the last word of `text` from which it is the beginning of a special token."""
        stripped = text.rstrip()
        tail = stripped[-self._longest :]
        offset = len(stripped) - len(tail)
        return [offset + i for i, char in enumerate(tail) if char in self._mark_of and tail[i:] in self._beginnings]

    def put_marks(self, text: str, places: Sequence[int]) -> str:
        chars = list(text)
        for place in places:
            chars[place] = self._mark_of[chars[place]]
        return "".join(chars)

    def remove_marks(self, text: str) -> str:
        return text.translate(self._text_of)

    def count(self, text: str) -> int:
        """Special tokens that `text` spells."""
        return sum(1 for _ in self._spellings.finditer(text))

    def encode_marked(self, marked: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and character offsets of a prompt in which only unmarked spellings are special tokens."""
        return self._encoder.encode(self, marked)

    def own_tokens(self, marked: str) -> list[tuple[int, int, str]]:
        """Start, end and spelling of the special tokens that the tokenizer would see in `marked`."""
        found = []
        for match in self._added.finditer(marked):
            if match[0] in self.ids:
                found.append((match.start(), match.end(), match[0]))
        return found

    @cached_property
    def _encoder(self) -> _RenamedEncoder:
        if self._backend is None:
            raise TypeError("these control tokens were made without a tokenizer")
        return _RenamedEncoder.of(self._backend, self.ids)


@define
class Marking:
    """The marks of one request. `spelled` counts neutralised spellings, for the metric."""

    tokens: ControlTokens
    spelled: int = 0
    marked: bool = False

    def text(self, text: str) -> str:
        """One supplied text with its marks. Raises `BadRequest` for lone surrogates: they could pass for marks, and are no text."""
        if not text.isascii():
            _refuse_surrogates(text)
        if not self.tokens.may_spell(text):
            return text
        spelled, places = self.tokens.find(text)
        places += self.tokens.open_ends(text)
        if not places:
            return text
        self.spelled += spelled
        self.marked = True
        return self.tokens.put_marks(text, places)

    def tools(self, tools: Any) -> Any:
        """What `value` gives. Tools are hundreds of short texts, nearly always harmless."""
        return self.value(tools) if self.tokens.any_may_spell(tools) else tools

    def value(self, value: Any) -> Any:
        """A supplied JSON value with marks in every text; the same object where there are none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            changed = False
            pairs = {}
            for key, item in value.items():
                new_key = self.text(key) if isinstance(key, str) else key
                new_item = pairs[new_key] = self.value(item)
                changed = changed or new_item is not item or new_key is not key
            return type(value)(pairs) if changed else value
        if isinstance(value, list | tuple):
            items = [self.value(item) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """One message of the conversation. What the assistant said is left alone: there a control token may be its own.

        Only what stands for media is never its own.
        """
        own_words = ("content", "reasoning", "reasoning_content", "thinking") if message["role"] == "assistant" else ()
        return {
            key: self._own(value)
            if key in own_words
            else value
            if key == "role" and value in ROLES
            else self.value(value)
            for key, value in message.items()
        }

    def _own(self, value: Any) -> Any:
        """The assistant's own words."""
        if isinstance(value, str):
            places = self.tokens.find_slots(value)
            if not places:
                return value
            self.spelled += len(places)
            self.marked = True
            return self.tokens.put_marks(value, places)
        if isinstance(value, list):
            return [{**part, "text": self._own(part["text"])} if "text" in part else part for part in value]
        return value


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise BadRequest(f"The text holds half a surrogate pair at character {e.start}.", "messages") from None


@frozen
class _RenamedEncoder:
    """A copy of a tokenizer, sharing its vocabulary, in which each special token goes by a name nobody can guess."""

    backend: Backend
    names: Mapping[str, str]
    real_ids: Mapping[int, int]
    """Ids of added tokens in the copy → ids in the original."""
    forbidden: Mapping[int, str]
    """Special ids that the vocabulary's own merges could still make out of plain text, with their spellings."""

    @classmethod
    def of(cls, original: Backend, ids: Mapping[str, int]) -> _RenamedEncoder:
        copy = Backend(original.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            value = getattr(original, part)
            if value is not None:
                setattr(copy, part, value)
        secret = secrets.token_hex(8)
        names = {text: f"\ufdd0{secret}{i:x}\ufdd1" for i, text in enumerate(ids)}
        added = sorted(original.get_added_tokens_decoder().items())
        renamed = [_rename(token, names.get(token.content)) for _, token in added]
        copy.add_tokens(renamed)
        copied = copy.get_added_tokens_decoder()
        ids_in_copy = {token.content: id for id, token in copied.items()}
        real_ids = {ids_in_copy[new.content]: id for new, (id, _) in zip(renamed, added, strict=True)}
        unknown = original.token_to_id(getattr(original.model, "unk_token", None) or "")
        forbidden = {id: text for text, id in ids.items() if id != unknown}
        return cls(copy, names, real_ids, forbidden)

    def encode(self, tokens: ControlTokens, marked: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and offsets into the unmarked text."""
        pieces: list[str] = []
        shifts: list[tuple[int, int, int]] = []
        """End of each renamed token in the renamed text, its real start and its real end."""
        position = length = 0
        for start, end, spelling in tokens.own_tokens(marked):
            name = self.names[spelling]
            pieces += (tokens.remove_marks(marked[position:start]), name)
            length += start - position + len(name)
            position = end
            shifts.append((length, start, end))
        pieces.append(tokens.remove_marks(marked[position:]))
        encoding = self.backend.encode("".join(pieces), add_special_tokens=False)
        return self._translate(encoding.ids, _unshift(encoding.offsets, shifts, self.names))

    def _translate(self, ids: list[int], offsets: list[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
        out_ids: list[int] = []
        out_offsets: list[tuple[int, int]] = []
        for id, offset in zip(ids, offsets, strict=True):
            real = self.real_ids.get(id)
            spelled = self.forbidden.get(id) if real is None else None
            if spelled is None:
                out_ids.append(id if real is None else real)
                out_offsets.append(offset)
                continue
            for char in spelled:
                split = self._encode_inside(char)
                out_ids += split
                out_offsets += [offset] * len(split)
        return out_ids, out_offsets

    def _encode_inside(self, char: str) -> list[int]:
        """Ids of one character in the middle of a text, where no space is put before it."""
        before = self.backend.encode("a", add_special_tokens=False).ids
        return self.backend.encode("a" + char, add_special_tokens=False).ids[len(before) :]


def _rename(token: AddedToken, name: str | None) -> AddedToken:
    """The same token under another name. A name is found in the text as it stands, before any normalisation."""
    return AddedToken(
        name or token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and name is None,
        special=False,
    )


def _unshift(
    offsets: Sequence[tuple[int, int]], shifts: Sequence[tuple[int, int, int]], names: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Offsets in the renamed text → offsets in the real one. Both run from left to right."""
    if not shifts:
        return list(offsets)
    result = []
    passed = 0
    shift = 0
    for start, end in offsets:
        while passed < len(shifts) and start >= shifts[passed][0]:
            shift = shifts[passed][0] - shifts[passed][2]
            passed += 1
        if passed < len(shifts) and end >= shifts[passed][0]:
            renamed_end, real_start, real_end = shifts[passed]
            renamed_start = real_start + shift
            result.append((min(start, renamed_start) - shift, real_end + (end - renamed_end)))
        else:
            result.append((start - shift, end - shift))
    return result
