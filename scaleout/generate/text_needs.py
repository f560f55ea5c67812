"""What a request needs of the tokenizer before it can run. Ids in, ids out needs none: it is loaded when the first request asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from scaleout.core import GenerateRequest
from scaleout.errors import ConfigError, NotSupported
from scaleout.generate.options import ThinkingMarkers

if TYPE_CHECKING:
    from scaleout.generate.constraint import Constraints, Matcher
    from scaleout.tokenizer import Tokenizer

LoadTokenizer = Callable[[], "Tokenizer"]
LoadThinking = Callable[[], ThinkingMarkers | None]


@frozen
class TextNeeds:
    """`bad_words`: id sequences that must not appear. `constraint`: copied for each choice. `thinking`: the model's markers."""

    bad_words: Sequence[Sequence[int]] = ()
    constraint: Matcher | None = None
    thinking: ThinkingMarkers | None = None


NOTHING = TextNeeds()


def needs_text(request: GenerateRequest) -> bool:
    params = request.sampling_params
    return bool(params.bad_words or params.structured_outputs or has_budget(request))


def has_budget(request: GenerateRequest) -> bool:
    budget = request.sampling_params.thinking_token_budget
    return budget is not None and budget >= 0


@define
class TextSide:
    """Loads at most once, whoever asks first, from whatever thread."""

    load_tokenizer: LoadTokenizer | None
    load_thinking: LoadThinking | None
    vocab_size: int
    eos: Sequence[int]
    _lock: Lock = field(factory=Lock)
    _tokenizer: Tokenizer | None = None
    _constraints: Constraints | None = None
    _thinking: ThinkingMarkers | None = None
    _knows_thinking: bool = False

    def prepare(self, request: GenerateRequest) -> TextNeeds:
        """May take seconds: call it off the event loop. Raises BadRequest, NotSupported."""
        params = request.sampling_params
        bad_words = self._spell(params.bad_words) if params.bad_words else ()
        constraint = self._compiler().compile(params.structured_outputs) if params.structured_outputs else None
        thinking = self._markers() if has_budget(request) or constraint is not None else None
        if has_budget(request) and thinking is None:
            raise NotSupported(
                "thinking_token_budget needs a model whose thinking markers are known.", "thinking_token_budget"
            )
        return TextNeeds(bad_words, constraint, thinking)

    def _spell(self, words: Sequence[str]) -> list[list[int]]:
        """Each word as it stands at the start of a text and after a space: vocabularies spell these differently."""
        tokenizer = self._load()
        spelled = [tokenizer.encode(text, False) for word in words for text in (word.strip(), f" {word.strip()}")]
        return [list(ids) for ids in dict.fromkeys(tuple(ids) for ids in spelled if ids)]

    def _load(self) -> Tokenizer:
        with self._lock:
            if self._tokenizer is None:
                if self.load_tokenizer is None:
                    raise NotSupported("The request needs a tokenizer, which this server does not have.")
                try:
                    self._tokenizer = self.load_tokenizer()
                except ConfigError as error:
                    raise NotSupported(
                        f"The request needs a tokenizer, and this model's cannot be used: {error}"
                    ) from error
            return self._tokenizer

    def _compiler(self) -> Constraints:
        tokenizer = self._load()
        with self._lock:
            if self._constraints is None:
                try:
                    from scaleout.generate.constraint import Constraints
                except ModuleNotFoundError as error:
                    raise NotSupported(
                        f"structured_outputs needs a package that is not installed: {error.name}"
                    ) from error
                self._constraints = Constraints.over(tokenizer, self.vocab_size, self.eos)
            return self._constraints

    def _markers(self) -> ThinkingMarkers | None:
        with self._lock:
            if not self._knows_thinking and self.load_thinking is not None:
                self._thinking = self.load_thinking()
            self._knows_thinking = True
            return self._thinking
