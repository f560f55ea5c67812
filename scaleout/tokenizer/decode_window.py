"""Ids to text piece by piece, with nothing remembered but the start of an unfinished character.

    window = open_window(tokenizer, prompt_tail_ids)
    window, steps = decode_next(tokenizer, window, ids)                 any number of times
    pieces = flush_window(tokenizer, window)                            once, at the end

However the ids are cut into calls, the text is the same, and it is the text that the library's decoder gives for them in the middle of a
text: a leading space stays. Two kinds of window: for vocabularies whose tokens can be read alone it holds the bytes of an unfinished
character; for the others it holds the last few ids.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

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


Step = tuple[Sequence[Piece] | None, int]
"""Pieces and how many ids they stand for. No pieces: the ids have no text, or not yet. None: silent ids."""


def decode_next(
    tokenizer: Tokenizer, window: DecodeWindow, ids: Sequence[int], silent: frozenset[int] = frozenset()
) -> tuple[DecodeWindow, list[Step]]:
    """Text of the next ids: the new window, and what is certain by now, in as few steps as tell which ids it came from.

    Each added token is a piece of its own; the text between two of them is one piece. Unknown ids have no text. `silent` ids are passed
    over, as if the text went on without them.
    """
    if not tokenizer.reads_tokens_alone:
        return _decode_in_context(tokenizer, window, ids, silent)
    cells = tokenizer.plain.of(ids)
    if not silent <= tokenizer.added_ids:
        cells = tuple(None if token_id in silent else cell for token_id, cell in zip(ids, cells, strict=True))
    if not window.pending:
        try:
            text = "".join(cells)  # type: ignore[arg-type]
        except TypeError:  # some of them are not plain
            pass
        else:
            return window, [([Piece(text)] if text else [], len(cells))] if cells else []
    return _decode_alone(tokenizer, window.pending, ids, cells, silent)


def pieces_of(steps: Sequence[Step]) -> list[Piece]:
    """All pieces of some steps."""
    return [piece for pieces, _ in steps for piece in pieces or ()]


def flush_window(tokenizer: Tokenizer, window: DecodeWindow) -> list[Piece]:
    """What an answer that ends here still holds back: the replacement character for a character that was never finished."""
    text = window.pending.decode(errors="replace") or _unread_text(tokenizer, window.ids, window.read)
    return [Piece(text)] if text else []


class _Steps:
    """Steps in the making: runs of plain text and the ids behind them, cut by markers and silent ids."""

    def __init__(self) -> None:
        self._run: list[str] = []
        self._ids = 0
        self.steps: list[Step] = []

    def add(self, text: str, ids: int) -> None:
        self._run.append(text)
        self._ids += ids

    def add_marker(self, text: str, special: bool) -> None:
        self.end_run()
        self.steps.append(([Piece(text, marker=True, special=special)], 1))

    def add_silent(self) -> None:
        self.end_run()
        self.steps.append((None, 1))

    def end_run(self) -> None:
        text = "".join(self._run)
        # A character that a marker cuts short may have begun in an earlier call: then it is text without an id.
        if text or self._ids:
            self.steps.append(([Piece(text)] if text else [], self._ids))
        self._run.clear()
        self._ids = 0


def _decode_alone(
    tokenizer: Tokenizer, pending: bytes, ids: Sequence[int], cells: Sequence[str | None], silent: frozenset[int]
) -> tuple[DecodeWindow, list[Step]]:
    """Run by run: what stands between two ids that are not plain is joined at once."""
    out = _Steps()
    at = 0
    while at < len(cells):
        try:
            gap = cells.index(None, at)
        except ValueError:
            gap = len(cells)
        if gap > at:
            text = "".join(cells[at:gap])  # type: ignore[arg-type]
            if pending and text:
                out.add(pending.decode(errors="replace"), 0)
                pending = b""
            out.add(text, gap - at)
            at = gap
            continue
        token_id = ids[at]
        at += 1
        if token_id in silent:
            out.add_silent()
            continue
        data = tokenizer.texts[token_id]
        if isinstance(data, bytes):
            pending += data
            finished, used = utf_8_decode(pending, "replace", False)
            pending = pending[used:]
            out.add(finished, 1)
            continue
        if pending:
            out.add(pending.decode(errors="replace"), 0)
            pending = b""
        out.add_marker(data, token_id in tokenizer.special_ids)
    out.end_run()
    return DecodeWindow(pending) if pending else EMPTY, out.steps


# ------------------------------------------------------------------------------ vocabularies whose tokens need their neighbours


def _unread_text(tokenizer: Tokenizer, ids: Sequence[int], read: int) -> str:
    if len(ids) == read:
        return ""
    before = tokenizer.decode(ids[:read], skip_special_tokens=False)
    return tokenizer.decode(ids, skip_special_tokens=False)[len(before) :]


def _decode_in_context(
    tokenizer: Tokenizer, window: DecodeWindow, ids: Sequence[int], silent: frozenset[int]
) -> tuple[DecodeWindow, list[Step]]:
    out = _Steps()
    held, read = window.ids, window.read
    for token_id in ids:
        if token_id in silent:
            out.add_silent()
        elif tokenizer.piece(token_id) is None:
            out.add("", 1)
        elif token_id in tokenizer.added_ids:
            out.add(_unread_text(tokenizer, held, read), 0)
            out.add_marker(tokenizer.added_tokens[token_id], token_id in tokenizer.special_ids)
            held, read = (token_id,), 1
        else:
            held = (*held, token_id)
            text = _unread_text(tokenizer, held, read)
            if not text.endswith(REPLACEMENT) or len(held) - read >= UNREAD_IDS:
                held = held[-CONTEXT_IDS:]
                read = len(held)
            else:
                text = ""
            out.add(text, 1)
    out.end_run()
    return DecodeWindow(ids=held, read=read), out.steps


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
