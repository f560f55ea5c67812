"""The tokenizer every stage shares: text to ids, ids to text, and what single tokens stand for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, Protocol

# One prompt is one task: threads of its own would only fight with the server's, and do not survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

from scaleout.errors import BadRequest
from scaleout.tokenizer.split_special import split_special_twin
from scaleout.tokenizer.token_bytes import byte_reader

Offsets = list[tuple[int, int]]
"""Per id the characters [start, end) of the input that it covers; (0, 0) for an added special token."""


ID_LIMIT = 1 << 32
"""The library's ids are unsigned numbers of 32 bits."""


class Encoded(Protocol):
    """What an encoder gives back."""

    @property
    def ids(self) -> list[int]: ...


FastEncode = Callable[[str, bool, bool], Encoded]
"""`encode(text, add_special_tokens, split_special_tokens)`."""


class TokenTexts(dict[int, "str | bytes"]):
    """What single tokens stand for in the middle of a text, filled on first use.

    Text where the token is text by itself, and "" where there is no such token; bytes where it is part of a character.
    """

    def __init__(self, token_bytes: Callable[[int], bytes | None]) -> None:
        super().__init__()
        self._token_bytes = token_bytes

    def __missing__(self, token_id: int) -> str | bytes:
        data = self._token_bytes(token_id) or b""
        try:
            self[token_id] = text = data.decode()
        except UnicodeDecodeError:
            self[token_id] = data
            return data
        return text


class PlainTexts(dict[int, "str | None"]):
    """Texts of tokens that are text by themselves and nothing else, filled on first use; None for added tokens and parts of characters.

    With it one join reads a run of ids and tells at the same time whether all of them are plain.
    """

    def __init__(self, texts: TokenTexts, added_ids: frozenset[int]) -> None:
        super().__init__()
        self._texts = texts
        self._added_ids = added_ids

    def __missing__(self, token_id: int) -> str | None:
        text = self._texts[token_id]
        self[token_id] = plain = text if type(text) is str and token_id not in self._added_ids else None
        return plain

    def of(self, ids: Sequence[int]) -> tuple[str | None, ...]:
        """One per id."""
        if len(ids) < 2:
            return (self[ids[0]],) if ids else ()
        return itemgetter(*ids)(self)  # type: ignore[no-any-return]  # the quickest way through a list of keys


class Tokenizer:
    """A vocabulary with its encoder and decoder. Safe to use from several threads: after loading, only the encoder may change.

    `backend` names the encoder in use ("hf" is the `tokenizers` library) and `backend_reason` says why it was chosen.
    """

    truncation_side: Literal["left", "right"] = "left"
    """The end of a prompt matters to what follows it, so a generation server cuts from the left whatever the folder says."""

    def __init__(
        self, library: tokenizers.Tokenizer, *, special_tokens: Mapping[str, str] | None = None, fingerprint: str = ""
    ) -> None:
        """`library` must be free of truncation and padding. `special_tokens`: by attribute, such as {"eos_token": "</s>"}."""
        self._library = library
        self._decoder: dict[str, Any] | None = json.loads(library.decoder.__getstate__()) if library.decoder else None
        self._read_bytes = byte_reader(self._decoder)
        added = sorted(library.get_added_tokens_decoder().items())
        self.added_tokens: Mapping[int, str] = {token_id: token.content for token_id, token in added}
        self.added_ids: frozenset[int] = frozenset(self.added_tokens)
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in added if token.special)
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        self.vocab_size: int = max(library.get_vocab_size(), max(self.added_tokens, default=-1) + 1)
        self.bos_id: int | None = self._named_id("bos_token")
        self.eos_id: int | None = self._named_id("eos_token")
        self.fingerprint = fingerprint
        self.backend = "hf"
        self.backend_reason = "no other was asked for"
        self._fast_encode: FastEncode | None = None
        self.texts: TokenTexts = TokenTexts(self.token_bytes)
        """`texts[id]`: see TokenTexts. Only meaningful where `reads_tokens_alone`."""
        self.plain: PlainTexts = PlainTexts(self.texts, self.added_ids)

    def _named_id(self, name: str) -> int | None:
        spelling = self.special_tokens.get(name)
        return None if spelling is None else self.id_of(spelling)

    # ------------------------------------------------------------------------------------------ text → ids

    def encode(self, text: str, add_special_tokens: bool, *, split_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; `add_special_tokens` puts the vocabulary's own BOS or EOS around them.

        `split_special_tokens`: special tokens spelled in `text` are ordinary text. Raises BadRequest for lone surrogates.
        """
        if self._fast_encode is not None:
            try:
                return self._fast_encode(text, add_special_tokens, split_special_tokens).ids
            except ValueError:
                pass  # a byte that the vocabulary lacks, or half a surrogate pair: the library decides
        return self._encode(text, add_special_tokens, split_special_tokens, offsets=False).ids

    def encode_with_offsets(
        self, text: str, add_special_tokens: bool, *, split_special_tokens: bool = False
    ) -> tuple[list[int], Offsets]:
        """Like `encode`, and per id the characters of `text` it covers. Ids that share a character share its span."""
        encoding = self._encode(text, add_special_tokens, split_special_tokens, offsets=True)
        return encoding.ids, encoding.offsets

    def _encode(self, text: str, special: bool, split_special: bool, *, offsets: bool) -> tokenizers.Encoding:
        library = self._split_special if split_special else self._library
        # The batch calls let go of the GIL while they work; the single one does not.
        encode = library.encode_batch if offsets else library.encode_batch_fast
        try:
            return encode([text], add_special_tokens=special)[0]
        except (UnicodeEncodeError, TypeError):
            raise _refuse(text) from None

    def use_encoder(self, backend: str, encode: FastEncode, reason: str) -> None:
        """Let `encode` find the ids from now on, unless offsets are wanted. It must give the library's ids or raise ValueError."""
        self._fast_encode = encode
        self.backend, self.backend_reason = backend, reason

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's own tokenizer, to build others from its parts. It is shared: change nothing about it."""
        return self._library

    def to_json(self) -> str:
        """The whole tokenizer as tokenizer.json."""
        return self._library.to_str()

    @cached_property
    def _split_special(self) -> tokenizers.Tokenizer:
        return split_special_twin(self._library)

    # ------------------------------------------------------------------------------------------ ids → text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of `ids` as a whole text, by the library's own decoder; unknown ids vanish."""
        try:
            return self._library.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:  # ids that no vocabulary can have
            known = [token_id for token_id in ids if 0 <= token_id < ID_LIMIT]
            return self._library.decode(known, skip_special_tokens=skip_special_tokens)

    # ------------------------------------------------------------------------------------------ single tokens

    @property
    def reads_tokens_alone(self) -> bool:
        """Does the text of a token, as bytes, not depend on its neighbours? True for all byte-level and SentencePiece decoders."""
        return self._read_bytes is not None

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's spelling, such as "Ġthere"; None when there is no such id."""
        return self._library.id_to_token(token_id) if 0 <= token_id < ID_LIMIT else None

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes a token stands for in the middle of a text; None when there is no such id."""
        spelling = self.piece(token_id)
        if spelling is None:
            return None
        if self._read_bytes is None:
            return self.decode([token_id], skip_special_tokens=False).encode()
        data = self._read_bytes(spelling)
        return spelling.encode() if token_id in self.added_tokens and not _is_utf8(data) else data

    def id_of(self, piece: str) -> int | None:
        """Id of a vocabulary spelling or an added token; None when there is none."""
        try:
            return self._library.token_to_id(piece)
        except UnicodeEncodeError:
            return None

    @cached_property
    def max_token_chars(self) -> int:
        """Characters of the longest spelling: a text of more than this times n cannot fit into n ids."""
        return max(map(len, self._library.get_vocab()), default=1)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse(text: Any) -> BadRequest:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return BadRequest(f"The text holds half a surrogate pair at character {error.start}, which is no character.")
    except AttributeError:
        pass
    return BadRequest(f"The text must be a string, got {type(text).__name__}.")
