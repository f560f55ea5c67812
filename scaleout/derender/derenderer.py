"""The derender stage: ids of one choice, delta by delta, → events. A whole answer is one delta; there is no second path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from uuid import NAMESPACE_OID, uuid5

from attrs import evolve

from scaleout import parsers
from scaleout.core import (
    ChatRequest,
    ChoiceDelta,
    CompletionRequest,
    Content,
    DecodedPosition,
    Event,
    Json,
    Piece,
    Reasoning,
    TokenDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)
from scaleout.derender.logprobs import decode_position, decode_prompt, name_ids
from scaleout.derender.state import (
    VERSION,
    Context,
    DerenderState,
    dump_context,
    load_context,
    read_count,
)
from scaleout.derender.stop_strings import hold_stops
from scaleout.errors import BadState, StaleState
from scaleout.parsers import Format
from scaleout.tokenizer import Tokenizer
from scaleout.tokenizer.decode_window import (
    EMPTY,
    Step,
    decode_next,
    dump_window,
    flush_window,
    load_window,
    open_window,
    pieces_of,
)

Place = Literal["content", "reasoning", "call"]

WEIGHTS: Mapping[Place, int] = {"content": 0, "call": 1, "reasoning": 2}
"""Which of two places an id belongs to that leads from one to the other."""

# The turn's header and an opened thought are near the end of a prompt; a prompt that goes on with a long thought may need more.
PROMPT_TAIL = 8192
MAX_STOPS = 64


class Derenderer:
    """Knows one tokenizer and at most one output format. Pure: everything about a choice is in its `DerenderState`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: Format | None,
        eos_ids: Sequence[int],
        *,
        names_ids: bool = False,
        on_repaired: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`names_ids`: write tokens of log probabilities as `token_id:N` in every answer. `on_repaired` is told how many headers of
        the model's were slightly off and read all the same.
        """
        self._names_ids = names_ids
        self._on_repaired = on_repaired
        self.tokenizer = tokenizer
        self.format = format
        known = set() if format is None else {i for token in format.tokens if (i := tokenizer.id_of(token)) is not None}
        self.end_ids = frozenset(eos_ids)
        self._silent = (tokenizer.special_ids | self.end_ids) - known
        self._silent_plain = tokenizer.special_ids | self.end_ids
        thought = None if format is None else format.thought
        marks = () if thought is None else (*thought.open, *thought.close, *thought.first)
        self._spelled_thoughts = format is not None and any(mark not in format.tokens for mark in marks)
        self._marks: dict[int, bool] = {}
        """Ids that open (False) or close (True) a thought, where they are tokens."""
        if thought is not None and not self._spelled_thoughts:
            self._marks = {tokenizer.id_of(mark) or 0: mark in thought.close for mark in marks}
        self._boundaries = tokenizer.special_ids - known
        self._fingerprint = f"{tokenizer.fingerprint[:12]}/{format.name if format else ''}"

    # ------------------------------------------------------------------------------------------ begin

    def begin(
        self, request: ChatRequest | CompletionRequest | None, prompt_ids: Sequence[int] | None, seed: str
    ) -> DerenderState:
        """The state before a choice's first id. `seed` makes the call ids; `request` None means plain detokenization."""
        ids = prompt_ids or ()
        window = open_window(self.tokenizer, ids)
        if request is None:
            return DerenderState(Context(seed=seed, names_ids=self._names_ids), window)
        chat = request if isinstance(request, ChatRequest) else None
        context = Context(
            seed=seed,
            parsed=chat is not None and self.format is not None,
            skip_special=request.sampling.skip_special_tokens,
            stops=request.sampling.stop,
            include_stop=request.sampling.include_stop_str_in_output,
            parallel_calls=chat is None or chat.parallel_tool_calls,
            show_reasoning=chat is None or chat.include_reasoning,
            names_ids=self._names_ids or request.options.return_tokens_as_token_ids,
            echo_alone=request.options.echo_alone,
        )
        if chat is None:
            return DerenderState(context, window, echo=ids if request.options.echo else ())
        if self.format is None:
            return DerenderState(context, window)
        calls = bool(chat.tools) and (chat.tool_choice is None or chat.tool_choice.mode != "none")
        parser = parsers.begin(self.format, self._tail(ids), tools=chat.tools or (), calls=calls)
        return DerenderState(context, window, parser)

    def _tail(self, ids: Sequence[int]) -> list[Piece]:
        """The prompt from its last turn boundary on: what decides whether a thought is open."""
        start = max(0, len(ids) - PROMPT_TAIL)
        for at in range(len(ids) - 1, start - 1, -1):
            if ids[at] in self._boundaries:
                start = at
                break
        return pieces_of(decode_next(self.tokenizer, EMPTY, ids[start:])[1])

    def thought_is_over(self, prompt_ids: Sequence[int]) -> bool | None:
        """Whether the prompt has closed a thought: then an answer can be constrained from its first token. None: no thoughts here."""
        if self.format is None or self.format.thought is None:
            return None
        thought, alphabet = self.format.thought, self.format.alphabet
        if not self._spelled_thoughts:
            for at in range(len(prompt_ids) - 1, max(-1, len(prompt_ids) - PROMPT_TAIL), -1):
                token_id = prompt_ids[at]
                if token_id in self._marks:
                    return self._marks[token_id]
                if token_id in self._boundaries:
                    break
            return False
        tail = alphabet.read(self._tail(prompt_ids))
        closed = max((tail.rfind(alphabet.encode(one)) for one in thought.close), default=-1)
        opened = max((tail.rfind(alphabet.encode(one)) for one in (*thought.open, *thought.first)), default=-1)
        return closed > opened

    def tells_thoughts(self, state: DerenderState) -> bool:
        """Whether thought tokens of this answer are counted."""
        return state.parser is not None and self.format is not None and self.format.thought is not None

    # ------------------------------------------------------------------------------------------ feed

    def feed(self, state: DerenderState, delta: TokenDelta) -> ChoiceDelta:
        """Advance `state` by one delta. With stop strings it goes id by id, so that the ids up to a match are known exactly.

        After a match the choice is closed: `finish_reason` is stop, and later deltas give nothing.
        """
        if state.closed:
            return ChoiceDelta(delta.index)
        advance = self._advance_by_one if state.context.stops else self._advance
        if state.context.echo_alone:
            advance = self._pass_over
        if state.echo:
            prompt, state.echo = self._echo(state, delta), ()
            state.offset = sum(len(one.sampled.token) for one in prompt.logprobs or ())
            rest = advance(state, delta)
            logprobs = None if rest.logprobs is None else [*(prompt.logprobs or ()), *rest.logprobs]
            answer = evolve(rest, events=[*prompt.events, *rest.events], logprobs=logprobs)
        else:
            answer = advance(state, delta)
        if answer.finish_reason is not None:
            state.closed = True
        return answer

    def _pass_over(self, state: DerenderState, delta: TokenDelta) -> ChoiceDelta:
        state.tokens += len(delta.token_ids)
        logprobs: list[DecodedPosition] | None = None if delta.logprobs is None else []
        reason = "length" if delta.finish_reason == "stop" else delta.finish_reason
        return ChoiceDelta(delta.index, logprobs=logprobs, finish_reason=reason, sampled=len(delta.token_ids))

    def _advance_by_one(self, state: DerenderState, delta: TokenDelta) -> ChoiceDelta:
        parts: list[ChoiceDelta] = []
        last = len(delta.token_ids) - 1
        for i in range(max(last + 1, 1)):
            part = evolve(
                delta,
                token_ids=delta.token_ids[i : i + 1],
                logprobs=None if delta.logprobs is None else delta.logprobs[i : i + 1],
                finish_reason=delta.finish_reason if i >= last else None,
                stop_reason=delta.stop_reason if i >= last else None,
            )
            parts.append(self._advance(state, part))
            if parts[-1].finish_reason is not None:
                break
        return ChoiceDelta(
            delta.index,
            [event for part in parts for event in part.events],
            [one for part in parts for one in part.token_ids],
            None if delta.logprobs is None else [one for part in parts for one in part.logprobs or ()],
            parts[-1].finish_reason,
            parts[-1].stop_reason,
            sum(part.sampled for part in parts),
            None if parts[0].reasoning_tokens is None else sum(part.reasoning_tokens or 0 for part in parts),
        )

    def _advance(self, state: DerenderState, delta: TokenDelta) -> ChoiceDelta:
        ids, context = delta.token_ids, state.context
        logprobs = self._decode_logprobs(state, delta)
        state.tokens += len(ids)
        finishing = delta.finish_reason is not None
        events, places = self._read(state, delta, finishing)
        thoughts = None
        if places is not None:
            if logprobs is not None:
                logprobs = [evolve(one, region=where) for one, where in zip(logprobs, places, strict=False)]
            thoughts = places.count("reasoning") if self.tells_thoughts(state) else None
            state.reasoning += thoughts or 0
            if not context.show_reasoning:
                # What is hidden must not come out by another door.
                ids = [one for one, where in zip(ids, places, strict=True) if where != "reasoning"]
                logprobs = None if logprobs is None else [one for one in logprobs if one.region != "reasoning"]
        finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
        if context.stops:
            events, state.held, match = hold_stops(context.stops, state.held, events, context.include_stop)
            if match is not None:
                finish_reason, stop_reason = "stop", match.stop
            elif finishing and state.held:
                events.append(Content(state.held))
                state.held = ""
        if finish_reason == "stop" and state.calls:
            finish_reason = "tool_calls"
        if type(stop_reason) is int and stop_reason in self.end_ids:
            stop_reason = None
        sampled = len(delta.token_ids)
        return ChoiceDelta(delta.index, events, ids, logprobs, finish_reason, stop_reason, sampled, thoughts)

    def _read(self, state: DerenderState, delta: TokenDelta, finishing: bool) -> tuple[list[Event], list[Place] | None]:
        """Decode and parse. Beside the events, where each id's text went; None where nothing is parsed."""
        steps = self._decode(state, delta)
        tail = flush_window(self.tokenizer, state.window) if finishing else []
        if state.parser is None or self.format is None:
            text = "".join([piece.text for piece in (*pieces_of(steps), *tail)])
            return ([Content(text)] if text else []), None
        events, places = self._feed(self.format, state, steps)
        if finishing:
            if tail:
                state.parser, more = parsers.feed(self.format, state.parser, tail)
                events += more
            events += parsers.finish(self.format, state.parser)
        return self._settle(state, delta.index, events), places

    def _decode(self, state: DerenderState, delta: TokenDelta) -> list[Step]:
        """The delta's ids as pieces for the parser, in as few steps as tell where each id's text goes."""
        silent = self._silent_in(state, delta)
        # Text between two markers goes to one place, so nothing is lost by reading it at once; but each logprob has a place of its own.
        whole = delta.logprobs is None and not self._spelled_thoughts
        steps: list[Step] = []
        for ids in [delta.token_ids] if whole else [[one] for one in delta.token_ids]:
            state.window, more = decode_next(self.tokenizer, state.window, ids, silent)
            steps += more
        return steps

    def _feed(self, format: Format, state: DerenderState, steps: Sequence[Step]) -> tuple[list[Event], list[Place]]:
        """Feed pieces with how many ids they stand for. Markers belong to what they open and close."""
        assert state.parser is not None
        events: list[Event] = []
        places: list[Place] = []
        place = parsers.place(format, state.parser)
        for pieces, ids in steps:
            if pieces is None:
                places += ["content"] * ids
                continue
            began = place
            if pieces:
                state.parser, more = parsers.feed(format, state.parser, pieces)
                events += more
                if state.parser.repaired:
                    self._on_repaired(state.parser.repaired)
                    state.parser.repaired = 0
                place = parsers.place(format, state.parser)
            places += [max(began, place, key=WEIGHTS.__getitem__)] * ids
        return events, places

    def _silent_in(self, state: DerenderState, delta: TokenDelta) -> frozenset[int]:
        """Ids of this delta that are no text."""
        if state.context.parsed:
            silent = self._silent
        elif state.context.skip_special:
            silent = self._silent_plain
        else:
            silent = frozenset(delta.token_ids[-1:]) & self.end_ids if delta.finish_reason == "stop" else frozenset()
        # The id that ended the answer is no text, even where special tokens are shown.
        if delta.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] == delta.stop_reason:
            silent = silent | {delta.token_ids[-1]}
        return silent

    def _settle(self, state: DerenderState, choice: int, events: Sequence[Event]) -> list[Event]:
        """Give calls their ids, and leave out what the request did not want to see."""
        context, shown = state.context, []
        for event in events:
            if type(event) is ToolStart:
                state.calls += 1
                if event.id is None:
                    event = evolve(event, id=make_call_id(context.seed, choice, event.index))
            if type(event) is Reasoning and not context.show_reasoning:
                continue
            if isinstance(event, (ToolStart, ToolArguments, ToolEnd)) and event.index and not context.parallel_calls:
                continue
            shown.append(event)
        return shown

    def _echo(self, state: DerenderState, delta: TokenDelta) -> ChoiceDelta:
        """The prompt as the first words of the answer, with its logprobs where the engine sent them."""
        ids = state.echo
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        given = delta.prompt.logprobs if delta.prompt is not None and delta.logprobs is not None else None
        return ChoiceDelta(
            delta.index,
            [Content(text)] if text else [],
            logprobs=None if given is None else self._spell(state, decode_prompt(self.tokenizer, ids, given)),
        )

    # ------------------------------------------------------------------------------------------ logprobs

    def _decode_logprobs(self, state: DerenderState, delta: TokenDelta) -> list[DecodedPosition] | None:
        if delta.logprobs is None:
            return None
        window, positions = state.window, []
        for i, position in enumerate(delta.logprobs):
            decoded = decode_position(self.tokenizer, window, position, state.offset)
            state.offset += len(decoded.sampled.token)
            positions.append(decoded)
            if i < len(delta.token_ids):
                window, _ = decode_next(self.tokenizer, window, delta.token_ids[i : i + 1])
        return self._spell(state, positions)

    def _spell(self, state: DerenderState, positions: list[DecodedPosition]) -> list[DecodedPosition]:
        return [name_ids(position) for position in positions] if state.context.names_ids else positions

    # ------------------------------------------------------------------------------------------ state as JSON

    def dump(self, state: DerenderState) -> dict[str, Json]:
        """The state as JSON for `load`; under 1 KB but for long stop strings."""
        wire: dict[str, Json] = {
            "v": VERSION,
            "of": self._fingerprint,
            "context": dump_context(state.context),
            "window": dump_window(state.window),
            "counts": [state.calls, state.tokens, state.reasoning, state.offset, int(state.closed)],
        }
        if state.parser is not None:
            wire["parser"] = parsers.dump_state(state.parser)
        if state.held:
            wire["held"] = state.held
        if state.echo:
            wire["echo"] = list(state.echo)
        return wire

    def load(self, value: Json) -> DerenderState:
        """A state that a client carried. Raises `BadState` when it is damaged, `StaleState` when it is another model's."""
        if not isinstance(value, dict):
            raise BadState("stream_state must be an object", "stream_state")
        if value.get("v") != VERSION or value.get("of") != self._fingerprint:
            raise StaleState(
                "stream_state was made by another version, model or output format; begin the answer anew",
                "stream_state",
            )
        context = load_context(value.get("context"), MAX_STOPS)
        counts, held, echo = value.get("counts"), value.get("held", ""), value.get("echo", [])
        if not isinstance(counts, list) or len(counts) != 5 or not isinstance(held, str) or not isinstance(echo, list):
            raise BadState("stream_state: bad counts", "stream_state")
        if len(held) > max(map(len, context.stops), default=0):
            raise BadState("stream_state: more text held than a stop string has", "stream_state")
        if not all(type(one) is int and 0 <= one < self.tokenizer.vocab_size for one in echo):
            raise BadState("stream_state: bad prompt ids", "stream_state")
        calls, tokens, reasoning, offset, closed = (read_count(one, "count") for one in counts)
        if context.parsed and self.format is None:
            raise StaleState("stream_state is of a parsed answer; this server parses none", "stream_state")
        parser = parsers.load_state(self.format, value.get("parser")) if context.parsed and self.format else None
        window = load_window(self.tokenizer, value.get("window"))
        return DerenderState(context, window, parser, held, calls, tokens, reasoning, offset, bool(closed), echo)


def make_call_id(seed: str, choice: int, index: int) -> str:
    """The same call of the same answer has the same id, however often and wherever it is derendered."""
    return f"chatcmpl-tool-{uuid5(NAMESPACE_OID, f'{seed}/{choice}/{index}').hex}"
