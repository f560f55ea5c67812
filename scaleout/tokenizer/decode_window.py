"""Ids to text piece by piece, with nothing remembered but the start of an unfinished character.

    window = open_window(tokenizer, prompt_tail_ids)
    window, pieces, counts = decode_next(tokenizer, window, ids)        any number of times
    pieces = flush_window(tokenizer, window)                            once, at the end

However the ids are cut into calls, the text is the same, and it is the text that the library's decoder gives for them in the middle of a
text: a leading space stays. Two kinds of window: for vocabularies whose tokens can be read alone it holds the bytes of an unfinished
character; for the others it holds the last few ids.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from itertools import accumulate

from attrs import frozen

from scaleout.core import Json, Piece
from scaleout.errors import BadState
from scaleout.tokenizer.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
"""What stands in a text for bytes that are no character."""

CONTEXT_IDS = 6
"""Ids kept before the unread ones, so that the next token joins them as it would in the whole text."""

UNREAD_IDS = 8
"""Ids that may wait for the end of a character: byte tokens of two characters. Then they are read as they are."""


@frozen
class DecodeWindow:
    """Where decoding stands: at most 3 `pending` bytes, or at most CONTEXT_IDS + UNREAD_IDS `ids` of which `read` are in the text."""

    pending: bytes = b""
    ids: tuple[int, ...] = ()
    read: int = 0


EMPTY = DecodeWindow()


def open_window(tokenizer: Tokenizer, prompt_tail_ids: Sequence[int]) -> DecodeWindow:
    """The window behind a prompt. `prompt_tail_ids`: the last few ids of it, or none when the prompt is not known."""
    tail = [token_id for token_id in prompt_tail_ids[-CONTEXT_IDS:] if tokenizer.piece(token_id) is not None]
    if not tokenizer.reads_tokens_alone:
        return DecodeWindow(ids=tuple(tail), read=len(tail))
    if not tail or isinstance(tokenizer.texts[tail[-1]], str):
        return EMPTY
    data = b"".join(tokenizer.token_bytes(token_id) or b"" for token_id in tail)
    # A prompt that ends within a character leaves its start to be completed; older bytes cannot matter.
    data = data[-3:]
    for start in range(len(data)):
        if _is_unfinished(data[start:]):
            return DecodeWindow(pending=data[start:])
    return EMPTY


def decode_next(
    tokenizer: Tokenizer, window: DecodeWindow, ids: Sequence[int]
) -> tuple[DecodeWindow, list[Piece], list[int]]:
    """Text of the next ids: the new window, the pieces, and per id how many characters of this call's text were out after it.

    Each added token is a piece of its own; the text between two of them is one piece. Unknown ids have no text.
    """
    if not tokenizer.reads_tokens_alone:
        return _decode_in_context(tokenizer, window, ids)
    table = tokenizer.texts
    texts = [table[token_id] for token_id in ids]
    if not window.pending and tokenizer.added_ids.isdisjoint(ids):
        try:
            text = "".join(texts)  # type: ignore[arg-type]
        except TypeError:  # some of them are bytes
            pass
        else:
            return window, [Piece(text)] if text else [], list(accumulate(map(len, texts)))
    return _decode_bytes(tokenizer, window.pending, ids, texts)


Step = tuple[Sequence[Piece] | None, int]
"""Pieces and how many ids they stand for. No pieces: the ids have no text, or not yet. None: silent ids."""


def decode_steps(
    tokenizer: Tokenizer, window: DecodeWindow, ids: Sequence[int], silent: frozenset[int]
) -> tuple[DecodeWindow, list[Step]]:
    """Like `decode_next` for vocabularies whose tokens can be read alone, in fewer operations: one join per run of plain tokens.

    `silent` are added tokens that are passed over.
    """
    cells = tokenizer.plain.of(ids)
    pending = window.pending
    if not pending:
        try:
            text = "".join(cells)  # type: ignore[arg-type]
        except TypeError:  # some of them are not plain
            pass
        else:
            return window, [([Piece(text)] if text else [], len(cells))] if cells else []
    steps: list[Step] = []
    run: list[str] = []
    at = began = 0
    while at < len(cells):
        try:
            gap = cells.index(None, at)
        except ValueError:
            gap = len(cells)
        if gap > at:
            text = "".join(cells[at:gap])  # type: ignore[arg-type]
            if pending and text:
                run.append(pending.decode(errors="replace"))
                pending = b""
            run.append(text)
            at = gap
            continue
        token_id = ids[at]
        data = tokenizer.texts[token_id]
        at += 1
        if type(data) is bytes:
            pending += data
            finished, used = utf_8_decode(pending, "replace", False)
            pending = pending[used:]
            run.append(finished)
            continue
        if token_id not in silent and pending:
            run.append(pending.decode(errors="replace"))
            pending = b""
        if at - 1 > began:
            steps.append((_joined(run), at - 1 - began))
            run.clear()
        if token_id in silent:
            steps.append((None, 1))
        else:
            steps.append(([Piece(str(data), marker=True, special=token_id in tokenizer.special_ids)], 1))
        began = at
    if at > began:
        steps.append((_joined(run), at - began))
    return DecodeWindow(pending) if pending else EMPTY, steps


def _joined(run: Sequence[str]) -> list[Piece]:
    text = "".join(run)
    return [Piece(text)] if text else []


def flush_window(tokenizer: Tokenizer, window: DecodeWindow) -> list[Piece]:
    """What an answer that ends here still holds back: the replacement character for a character that was never finished."""
    text = window.pending.decode(errors="replace") or _unread_text(tokenizer, window.ids, window.read)
    return [Piece(text)] if text else []


class _Pieces:
    """Pieces in the making: runs of plain text, cut by markers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special_ids = tokenizer.special_ids
        self._run: list[str] = []
        self.length = 0
        self.pieces: list[Piece] = []

    def add(self, text: str) -> None:
        self._run.append(text)
        self.length += len(text)

    def add_marker(self, token_id: int, text: str) -> None:
        self.end_run()
        self.pieces.append(Piece(text, marker=True, special=token_id in self._special_ids))
        self.length += len(text)

    def end_run(self) -> None:
        text = "".join(self._run)
        self._run.clear()
        if text:
            self.pieces.append(Piece(text))


def _decode_bytes(
    tokenizer: Tokenizer, pending: bytes, ids: Sequence[int], texts: Sequence[str | bytes]
) -> tuple[DecodeWindow, list[Piece], list[int]]:
    out = _Pieces(tokenizer)
    counts = []
    added = tokenizer.added_ids
    for token_id, text in zip(ids, texts, strict=True):
        if isinstance(text, bytes):
            data = pending + text
            finished, used = utf_8_decode(data, "replace", False)
            pending = data[used:]
            out.add(finished)
        elif text:
            if pending:
                out.add(pending.decode(errors="replace"))
                pending = b""
            if token_id in added:
                out.add_marker(token_id, text)
            else:
                out.add(text)
        counts.append(out.length)
    out.end_run()
    return DecodeWindow(pending) if pending else EMPTY, out.pieces, counts


# ------------------------------------------------------------------------------ vocabularies whose tokens need their neighbours


def _unread_text(tokenizer: Tokenizer, ids: Sequence[int], read: int) -> str:
    if len(ids) == read:
        return ""
    before = tokenizer.decode(ids[:read], skip_special_tokens=False)
    return tokenizer.decode(ids, skip_special_tokens=False)[len(before) :]


def _decode_in_context(
    tokenizer: Tokenizer, window: DecodeWindow, ids: Sequence[int]
) -> tuple[DecodeWindow, list[Piece], list[int]]:
    out = _Pieces(tokenizer)
    counts = []
    held, read = window.ids, window.read
    for token_id in ids:
        if tokenizer.piece(token_id) is None:
            pass
        elif token_id in tokenizer.added_ids:
            out.add(_unread_text(tokenizer, held, read))
            out.add_marker(token_id, tokenizer.added_tokens[token_id])
            held, read = (token_id,), 1
        else:
            held = (*held, token_id)
            text = _unread_text(tokenizer, held, read)
            if not text.endswith(REPLACEMENT) or len(held) - read >= UNREAD_IDS:
                out.add(text)
                held = held[-CONTEXT_IDS:]
                read = len(held)
        counts.append(out.length)
    out.end_run()
    return DecodeWindow(ids=held, read=read), out.pieces, counts


# ------------------------------------------------------------------------------------------ windows as JSON


def dump_window(window: DecodeWindow) -> Json:
    """The window as JSON: "" or the pending bytes in hexadecimal, or a list of how many ids are read and the ids."""
    return [window.read, *window.ids] if window.ids else window.pending.hex()


def load_window(tokenizer: Tokenizer, value: Json) -> DecodeWindow:
    """The window that `dump_window` wrote. Raises BadState for anything else."""
    match value:
        case "":
            return EMPTY
        case str() if tokenizer.reads_tokens_alone and len(value) <= 6:
            try:
                pending = bytes.fromhex(value)
            except ValueError:
                pending = b""
            if _is_unfinished(pending) and pending.hex() == value:
                return DecodeWindow(pending)
        case [int(read), *ids] if not tokenizer.reads_tokens_alone:
            known = all(type(token_id) is int and 0 <= token_id < tokenizer.vocab_size for token_id in ids)
            if known and type(read) is int and 0 <= read <= min(len(ids), CONTEXT_IDS) and len(ids) - read < UNREAD_IDS:
                return DecodeWindow(ids=tuple(ids), read=read)
    raise BadState("The decode window of the state is damaged.")


def _is_unfinished(data: bytes) -> bool:
    """Is `data` the start of one character, and nothing else?"""
    if not 0 < len(data) < 4:
        return False
    try:
        return utf_8_decode(data, "strict", False) == ("", 0)
    except UnicodeDecodeError:
        return False
