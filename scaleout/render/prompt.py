"""Conversation → prompt: template, injection safety, encoding, and on request which token belongs to what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve, field, frozen

from scaleout.config import Limits
from scaleout.core import ChatRequest, Features, Json, RequestOptions
from scaleout.core.media import MediaSet, MediaWanted
from scaleout.errors import BadRequest
from scaleout.render.attribution import Conversation, mask_of, spans_of
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.content_format import ContentFormat
from scaleout.render.injection import ControlTokens, Marking
from scaleout.render.messages import count_items, lead_with_system, messages_to_dicts, origins, tools_to_dicts
from scaleout.render.multimodal import Multimodal, spellings
from scaleout.render.placement import MediaParts, expand, place, show_placeholders
from scaleout.render.prompt_length import Edges, check_characters
from scaleout.render.template_bounds import TemplateLimits
from scaleout.render.template_set import TemplateSet
from scaleout.render.variables import merge_kwargs, template_variables
from scaleout.tokenizer import Tokenizer

Offsets = Sequence[tuple[int, int]]


@frozen
class RenderSettings:
    """The operator's choices (the render group of the settings)."""

    chat_template: str | None = None
    content_format: ContentFormat | None = None
    """None looks at the template."""
    default_chat_template_kwargs: Mapping[str, Json] = field(factory=dict)
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    special_tokens_in_content: Literal["text", "allow"] = "text"


@frozen
class ModelFacts:
    """The model as render needs it: the name for error texts, context length and vocabulary size in ids, and its chat templates.

    `eos_token_ids` end an answer; without them the tokenizer's own does.
    """

    name: str
    max_model_len: int
    vocab_size: int
    chat_template: str | Mapping[str, str] | None = None
    eos_token_ids: Sequence[int] = ()


@frozen
class Prompt:
    """A rendered prompt. `offsets` (characters of `text` per id), `mask` and `spans` are there on request.

    `kwargs` is what the template was told beside the messages.
    """

    text: str
    token_ids: Sequence[int]
    offsets: Offsets | None = None
    kwargs: Mapping[str, Json] = field(factory=dict)
    mask: Sequence[int] | None = None
    spans: Sequence[Mapping[str, Json]] | None = None
    features: Features | None = None


@frozen
class _Templated:
    """A templated conversation, its text still marked, and all that went into it."""

    text: str
    request: ChatRequest
    template: ChatTemplate
    variables: Mapping[str, Any]
    items: int
    kwargs: dict[str, Json]
    media: MediaParts | None = None

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        """The same with other messages."""
        variables = {**self.variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
        return self.template.render(variables, self.items)


class PromptWriter:
    """Writes the prompts of one model. Holds no request state.

    `on_neutralised` is told how many special tokens were spelled out in a request's supplied text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelFacts,
        settings: RenderSettings,
        limits: Limits,
        on_neutralised: Callable[[int], None] | None = None,
        multimodal: Multimodal | None = None,
    ) -> None:
        self._multimodal = multimodal
        self.edges = Edges.of(tokenizer)
        self._tokenizer = tokenizer
        self._model = model
        self._settings = settings
        self._limits = limits
        self._on_neutralised = on_neutralised
        self._max_chars = limits.max_prompt_chars or model.max_model_len * tokenizer.max_token_chars
        self._templates = TemplateSet(
            model.chat_template,
            settings.chat_template,
            trust_requests=settings.trust_request_chat_template,
            content_format=settings.content_format,
            limits=TemplateLimits(limits.max_template_seconds, limits.max_template_chars),
        )
        self._templates.prepare()
        slots = spellings(multimodal.kinds.values()) if multimodal is not None else frozenset()
        self._control = ControlTokens.of(tokenizer, slots) if settings.special_tokens_in_content == "text" else None
        eos_ids = model.eos_token_ids or ([] if tokenizer.eos_id is None else [tokenizer.eos_id])
        self._eos = {id: tokenizer.added_tokens.get(id, "") for id in eos_ids}

    def write(self, request: ChatRequest, media: MediaSet | None = None) -> Prompt:
        """Template and encode one conversation, whatever its length in ids.

        Raises `BadRequest`; `MediaWanted` where the conversation names media and `media` is None.
        """
        self._check(request)
        marking = Marking(self._control) if self._control is not None else None
        done = self._apply_tolerantly(request, marking)
        if done.media is not None and done.media.refs:
            if media is None or not media.absent:
                return self._write_with_media(done, marking, done.media, media)
            done = evolve(done, text=show_placeholders(done.text, done.media.multimodal))
        options = request.options
        self.check_characters(done.text, options)
        attributed = options.return_assistant_tokens_mask or options.return_spans
        ids, offsets = self._encode_marked(done.text, options, marking, options.return_token_offsets or attributed)
        text = done.text
        if marking is not None and marking.marked:
            text = marking.tokens.remove_marks(text)
            if marking.spelled and self._on_neutralised is not None:
                self._on_neutralised(marking.spelled)
        prompt = Prompt(text, ids, offsets if options.return_token_offsets else None, done.kwargs)
        return self._attribute(prompt, done, offsets) if attributed and offsets is not None else prompt

    def _write_with_media(
        self, done: _Templated, marking: Marking | None, parts: MediaParts, media: MediaSet | None
    ) -> Prompt:
        """The same for a conversation with media: each placeholder of the template becomes its item's slots."""
        multimodal, options = parts.multimodal, done.request.options
        wishes = multimodal.wishes_of(done.request)
        multimodal.check_counts(parts.refs)
        self.check_characters(done.text, options)
        if media is None:
            raise MediaWanted(parts.refs)
        prepared = multimodal.prepare(parts.refs, media, wishes, self._model.max_model_len)
        expanded = expand(done.text, multimodal, prepared)
        attributed = options.return_assistant_tokens_mask or options.return_spans
        short, offsets = self._encode_marked(expanded.text, options, marking, attributed)
        id_of = {token: self._tokenizer.id_of(token) or 0 for _, _, token in expanded.runs}
        ids, offsets, features = place(short, offsets, expanded, id_of, wishes.payload)
        if not multimodal.settings.raw_pixels:
            features = multimodal.finish(features)
        text = expanded.plain if marking is None else marking.tokens.remove_marks(expanded.plain)
        if marking is not None and marking.spelled and self._on_neutralised is not None:
            self._on_neutralised(marking.spelled)
        prompt = Prompt(text, ids, None, done.kwargs, features=features)
        return self._attribute(prompt, done, offsets) if offsets is not None else prompt

    def check_characters(self, text: str, options: RequestOptions) -> None:
        """Refuse a text that cannot fit, before the tokenizer works on it; one that will be cut may be longer."""
        if options.truncate_prompt_tokens is None:
            check_characters(text, self._model.max_model_len, self._max_chars)

    def encode(self, text: str, options: RequestOptions, with_offsets: bool) -> tuple[list[int], Offsets | None]:
        """Ids of a text as it stands, with the special tokens around it that the request asks for."""
        if with_offsets:
            return self._tokenizer.encode_with_offsets(text, add_special_tokens=options.add_special_tokens)
        return self._tokenizer.encode(text, add_special_tokens=options.add_special_tokens), None

    def _check(self, request: ChatRequest) -> None:
        if not request.messages:
            raise BadRequest(
                "Cannot apply chat template to an empty conversation. Provide at least one message.", "messages"
            )
        _check_count("messages", request.messages, self._limits.max_messages)
        _check_count("tools", request.tools or (), self._limits.max_tools)
        if request.continue_final_message and request.add_generation_prompt:
            raise BadRequest(
                "continue_final_message and add_generation_prompt are not compatible. Set add_generation_prompt to false to "
                "continue the final message.",
                "continue_final_message",
            )

    def _apply_tolerantly(self, request: ChatRequest, marking: Marking | None) -> _Templated:
        """Apply the template; where it refuses and the dialect lets system messages move, once more with them all in front."""
        try:
            return self._apply_template(request, marking)
        except BadRequest:
            if not request.system_may_move or all(message.role != "system" for message in request.messages[1:]):
                raise
        return self._apply_template(evolve(request, messages=lead_with_system(request.messages)), marking)

    def _apply_template(self, request: ChatRequest, marking: Marking | None) -> _Templated:
        kwargs = merge_kwargs(request, self._settings.default_chat_template_kwargs)
        tools = self._tools(request, kwargs)
        requested = request.chat_template if request.chat_template is not None else kwargs.get("chat_template")
        chosen = self._templates.pick(requested, bool(tools))
        template = chosen.template
        media = MediaParts(self._multimodal, self._model.name) if self._multimodal is not None else None
        messages = messages_to_dicts(request.messages, chosen.view, self._model.name, media)
        variables = template_variables(kwargs, template.variables, self._tokenizer.special_tokens)
        documents = kwargs.get("documents")
        if marking is not None:
            messages = [marking.message(message) for message in messages]
            tools = marking.tools(tools)
            documents = marking.value(documents)
            variables.update((name, marking.value(variables[name])) for name in kwargs.keys() & variables.keys())
        variables["messages"] = messages
        variables["tools"] = tools
        variables["documents"] = documents
        variables["add_generation_prompt"] = request.add_generation_prompt
        items = count_items(request.messages, tools)
        render = template.render_open if request.continue_final_message else template.render
        return _Templated(render(variables, items), request, template, variables, items, kwargs, media)

    def _tools(self, request: ChatRequest, kwargs: Mapping[str, Json]) -> Any:
        """What the template sees. As with the reference peer, `chat_template_kwargs` say it last, and server defaults first."""
        given = request.chat_template_kwargs.get("tools")
        if given is not None and given != "auto":
            return given
        choice = request.tool_choice
        excluded = choice is not None and choice.mode == "none" and self._settings.exclude_tools_when_tool_choice_none
        if request.tools and not excluded:
            return tools_to_dicts(request.tools)
        return kwargs.get("tools")

    def _encode_marked(
        self, text: str, options: RequestOptions, marking: Marking | None, with_offsets: bool
    ) -> tuple[Sequence[int], Offsets | None]:
        """Ids of a templated text in which only unmarked spellings are special tokens."""
        if marking is not None and marking.marked:
            plain = marking.tokens.remove_marks(text)
            if marking.tokens.count(plain) != marking.tokens.count(text):
                found, offsets = marking.tokens.encode_marked(text)
                return self._with_edges(found, offsets) if options.add_special_tokens else (found, offsets)
            text = plain
        ids, spans = self.encode(text, options, with_offsets)
        bos = self._tokenizer.bos_id
        if options.add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            # The template wrote the start token, so the tokenizer's own is one too many.
            return ids[1:], None if spans is None else spans[1:]
        return ids, spans

    def _with_edges(self, ids: list[int], offsets: list[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
        """Put around `ids` what the tokenizer puts around a text, but no second start token."""
        before, after = self.edges.before, self.edges.after
        if ids[:1] == before[-1:] == [self._tokenizer.bos_id]:
            before = before[:-1]
        return before + ids + after, [(0, 0)] * len(before) + offsets + [(0, 0)] * len(after)

    def _attribute(self, prompt: Prompt, done: _Templated, offsets: Offsets) -> Prompt:
        """The prompt with mask and spans."""
        options = done.request.options
        messages = done.variables["messages"]
        conversation = Conversation(
            done.render,
            messages,
            done.text,
            done.request.add_generation_prompt,
            done.request.continue_final_message,
            prompt.token_ids,
            offsets,
            self._eos,
        )
        blocks = self._generation_blocks(done)
        written = conversation.written_ranges() if blocks is None else blocks
        mask = mask_of(offsets, written, overlapping=blocks is not None)
        if options.return_spans:
            starts = conversation.message_starts(written)
            roles = [message["role"] for message in messages]
            found = spans_of(offsets, mask, starts, roles, origins(done.request.messages, messages))
            prompt = evolve(prompt, spans=found)
        return evolve(prompt, mask=mask) if options.return_assistant_tokens_mask else prompt

    def _generation_blocks(self, done: _Templated) -> list[tuple[int, int]] | None:
        """Ranges that the template itself marks as the model's words; None where it does not."""
        if not done.template.has_generation_blocks or done.request.continue_final_message:
            return None
        text, blocks = done.template.render_spans(done.variables, done.items)
        return blocks if text == done.text and blocks else None


def _check_count(name: str, values: Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise BadRequest(f"{name} holds {len(values)} entries, at most {most} are allowed.", name)
