"""Structured output: what a request demands of its answer's text, as masks over the vocabulary. llguidance does the work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from scaleout.core import Json
from scaleout.errors import BadRequest
from scaleout.generate.structural_tag import BLANKS, lark_of

if TYPE_CHECKING:
    from scaleout.tokenizer import Tokenizer

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own bounds: about 20 ms to build a lexer, 15 ms per mask, a few hundred MB of states at the very worst."""

MAX_CHARACTERS = 500_000
"""Of a schema, grammar or expression; building its parser takes time in proportion."""


class _Vocabulary(TokenizerWrapper):
    """Our tokenizer in the library's eyes: every id of the model, its bytes, and which of them are not text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(id) or b"" for id in range(vocab_size)]
        self.special_token_ids = sorted(id for id in tokenizer.special_ids if id < vocab_size)
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, False)


@define
class Constraints:
    """Compiles demands for one vocabulary."""

    _tokens: LLTokenizer
    _added_ids: Mapping[str, int]

    @classmethod
    def over(cls, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> Constraints:
        """Takes a second or two for a large vocabulary."""
        ends = list(eos) or [id for id in (tokenizer.eos_id,) if id is not None] or [0]
        tokens = LLTokenizer(_Vocabulary(tokenizer, vocab_size, ends[0]), n_vocab=vocab_size, eos_token=ends)
        added = {text: id for id, text in tokenizer.added_tokens.items() if id < vocab_size}
        return cls(tokens, added)

    def compile(self, demand: Mapping[str, Json]) -> Matcher:
        """`demand` is `structured_outputs` of the wire. Raises BadRequest with what is wrong about it."""
        place, grammar = read_demand(demand, self._added_ids)
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise BadRequest(f"{place} cannot be used: {matcher.get_error().strip()}", place)
        return Matcher(matcher)


def check_demand(demand: Mapping[str, Json], added_ids: Mapping[str, int]) -> None:
    """What `compile` would refuse whatever the vocabulary, for stages that have no engine. Raises BadRequest."""
    place, grammar = read_demand(demand, added_ids)
    fault = LLMatcher.validate_grammar(grammar)
    if fault:
        raise BadRequest(f"{place} cannot be used: {fault.strip()}", place)


def read_demand(demand: Mapping[str, Json], added_ids: Mapping[str, int]) -> tuple[str, str]:
    """The field that holds the demand, and the demand as a grammar. Raises BadRequest with what is wrong about it."""
    chosen = [kind for kind in KINDS if demand.get(kind) not in (None, False)]
    if len(chosen) != 1:
        raise BadRequest(f"structured_outputs needs exactly one of {', '.join(KINDS)}", "structured_outputs")
    kind = chosen[0]
    place = f"structured_outputs.{kind}"
    try:
        grammar = _grammar(kind, demand[kind], demand, added_ids)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"{place} cannot be read: {error}", place) from error
    if len(grammar) > MAX_CHARACTERS:
        raise BadRequest(f"{place} is longer than {MAX_CHARACTERS} characters", place)
    return place, grammar


def _grammar(kind: str, value: Json, demand: Mapping[str, Json], added_ids: Mapping[str, int]) -> str:
    match kind:
        case "json":
            schema = json.loads(value) if isinstance(value, str) else value
            return _json_grammar(schema, demand)
        case "json_object":
            return _json_grammar({"type": "object"}, demand)
        case "regex":
            return LLMatcher.grammar_from_regex(value)
        case "choice":
            options = " | ".join(json.dumps(str(option), ensure_ascii=False) for option in value)
            return LLMatcher.grammar_from_lark(f"start: {options}")
        case "grammar":
            return LLMatcher.grammar_from_lark(_as_lark(value))
        case _:
            tag = json.loads(value) if isinstance(value, str) else value
            return LLMatcher.grammar_from_lark(lark_of(tag, added_ids))


@define(eq=False)
class Matcher:
    """How far one answer has come."""

    _matcher: LLMatcher

    def copy(self) -> Matcher:
        """For another choice of the same request."""
        return Matcher(self._matcher.deep_copy())

    def take(self, token_ids: Sequence[int]) -> None:
        """Moves on by ids that the last masks allowed."""
        if token_ids:
            self._matcher.consume_tokens(list(token_ids))

    def mask(self) -> bytes:
        """One bit per id, lowest first. Raises BadRequest when the demand turned out too complex."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise BadRequest(
                f"structured_outputs cannot be followed: {self._matcher.get_error().strip()}", "structured_outputs"
            )
        return mask


def _json_grammar(schema: Json, demand: Mapping[str, Json]) -> str:
    if demand.get("disable_additional_properties"):
        schema = _closed(schema)
    options: dict[str, Json] = {"whitespace_flexible": not demand.get("disable_any_whitespace")}
    if not demand.get("disable_any_whitespace"):
        options["whitespace_pattern"] = demand.get("whitespace_pattern") or BLANKS
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options)  # type: ignore[arg-type]


def _closed(schema: Json) -> Json:
    """The schema with no properties but the named ones."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if closed.get("type") == "object" or "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _as_lark(grammar: str) -> str:
    """Lark as it is; GBNF, known by its `::=`, rewritten."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark: str = any_to_lark(grammar)
    except Exception as error:  # the converter raises that itself, with the place in its text
        raise ValueError(str(error)) from error
    return lark
