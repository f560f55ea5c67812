"""The path of render: validate → template → encode → fit into the context → sampling parameters. Synchronous, safe in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from scaleout.config import Limits
from scaleout.core import ChatRequest, CompletionRequest, GenerateRequest, Json, RequestOptions
from scaleout.errors import BadRequest
from scaleout.render.content_format import ContentFormat
from scaleout.render.injection import ControlTokens, Marking
from scaleout.render.messages import count_items, messages_to_dicts, tools_to_dicts
from scaleout.render.prompt_length import NO_EDGES, Edges, check_characters, check_truncation, fit
from scaleout.render.sampling import SamplingDefaults, SamplingRules
from scaleout.render.template_bounds import TemplateLimits
from scaleout.render.template_set import TemplateSet
from scaleout.render.variables import merge_kwargs, template_variables
from scaleout.tokenizer import Tokenizer

Offsets = Sequence[tuple[int, int]]


@frozen
class ModelFacts:
    """The model as render needs it: the name for error texts, context length and vocabulary size in ids, and its chat templates."""

    name: str
    max_model_len: int
    vocab_size: int
    chat_template: str | Mapping[str, str] | None = None


@frozen
class OutputFacts:
    """What render is told about the output format, so that it need not know one.

    `reasoning`: prompt ids → has the prompt already closed the reasoning (True), is it open or to come (False), unknown (None).
    `tool_constraint`: the `structured_outputs` that make the model call a tool; None where the request asks for no such thing.
    `marks_are_special`: whether special tokens of the answer carry meaning: never, when tools may be called, or always.
    """

    has_tool_parser: bool = False
    has_reasoning_parser: bool = False
    reasoning: Callable[[Sequence[int]], bool | None] | None = None
    tool_constraint: Callable[[ChatRequest], Mapping[str, Json] | None] | None = None
    marks_are_special: Literal["never", "with_tools", "always"] = "never"


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
class Prompt:
    """A rendered conversation: its text, ids, the characters of the text per id (on request), and what the template was told."""

    text: str
    token_ids: Sequence[int]
    offsets: Offsets | None
    kwargs: Mapping[str, Json]


class Renderer:
    """Renders for one model. Holds no request state.

    `on_neutralised` is told how many special tokens were spelled out in a request's supplied text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelFacts,
        *,
        defaults: SamplingDefaults | None = None,
        limits: Limits | None = None,
        settings: RenderSettings | None = None,
        output: OutputFacts | None = None,
        on_neutralised: Callable[[int], None] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._limits = limits or Limits()
        self._settings = settings or RenderSettings()
        self._output = output or OutputFacts()
        self._on_neutralised = on_neutralised
        self._sampling = SamplingRules(
            self._limits, model.max_model_len, model.vocab_size, defaults or SamplingDefaults()
        )
        self._max_chars = self._limits.max_prompt_chars or model.max_model_len * tokenizer.max_token_chars
        self._edges = Edges.of(tokenizer)
        self._templates = TemplateSet(
            model.chat_template,
            self._settings.chat_template,
            trust_requests=self._settings.trust_request_chat_template,
            content_format=self._settings.content_format,
            limits=TemplateLimits(self._limits.max_template_seconds, self._limits.max_template_chars),
        )
        self._control = ControlTokens.of(tokenizer) if self._settings.special_tokens_in_content == "text" else None

    def render_chat(self, request: ChatRequest, *, request_id: str) -> GenerateRequest:
        """One conversation → one request for an engine. Raises `BadRequest` for everything that cannot work."""
        self._check_tool_choice(request)
        self._sampling.check_budget(request.sampling)
        check_truncation(request.options, self._model.max_model_len)
        prompt = self._carried_prompt(request) or self.render_prompt(request)
        ids, offsets = self._fit(prompt.token_ids, prompt.offsets, request.options)
        extra_args, constraint = _transfer_params(request.options), None
        if self._output.tool_constraint is not None and request.tools:
            constraint = self._output.tool_constraint(request)
        params = self._sampling.decide(
            request.sampling,
            len(ids),
            stream=request.options.stream,
            logprobs_name="top_logprobs",
            extra_args=extra_args,
            structured_outputs=constraint,
            skip_special_tokens=False if self._keeps_marks(request) else None,
        )
        return self._generate_request(
            request.options,
            request_id,
            ids,
            offsets,
            sampling_params=params,
            reasoning_ended=self._reasoning_ended(request, ids),
            reasoning_parser_kwargs=(
                {"chat_template_kwargs": prompt.kwargs} if self._output.has_reasoning_parser and prompt.kwargs else None
            ),
        )

    def render_completion(self, request: CompletionRequest, *, request_id: str) -> list[GenerateRequest]:
        """One or several prompts as they stand → one request each; several get `-0`, `-1`, … behind the id."""
        options = request.options
        if request.suffix is not None:
            if options.echo:
                raise BadRequest("Echo is unsupported with suffix.", "suffix")
            raise BadRequest("suffix is only supported for models with FIM completion rendering", "suffix")
        if not request.prompts:
            raise BadRequest("You must pass at least one prompt", "prompt")
        most = self._limits.max_completion_prompts
        if len(request.prompts) > most:
            raise BadRequest(
                f"prompt list length {len(request.prompts)} exceeds the maximum allowed count of {most}. To increase this limit, "
                "set the VLLM_MAX_COMPLETION_PROMPTS environment variable or --max-completion-prompts.",
                "prompt",
            )
        self._sampling.check_budget(request.sampling)
        check_truncation(options, self._model.max_model_len)
        several = len(request.prompts) > 1
        return [
            self._complete(request, prompt, f"{request_id}-{i}" if several else request_id)
            for i, prompt in enumerate(request.prompts)
        ]

    def render_prompt(self, request: ChatRequest) -> Prompt:
        """Template and encode one conversation, whatever its length in ids."""
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
        marking = Marking(self._control) if self._control is not None else None
        text, kwargs = self._apply_template(request, marking)
        if request.options.truncate_prompt_tokens is None:
            check_characters(text, self._model.max_model_len, self._max_chars)
        ids, offsets = self._encode_prompt(text, request.options, marking)
        if marking is not None and marking.marked:
            text = marking.tokens.remove_marks(text)
            if marking.spelled and self._on_neutralised is not None:
                self._on_neutralised(marking.spelled)
        return Prompt(text, ids, offsets, kwargs)

    def _apply_template(self, request: ChatRequest, marking: Marking | None) -> tuple[str, dict[str, Json]]:
        """The prompt's text, with marks, and the merged template arguments."""
        kwargs = merge_kwargs(request, self._settings.default_chat_template_kwargs)
        tools = self._tools(request, kwargs)
        requested = request.chat_template if request.chat_template is not None else kwargs.get("chat_template")
        chosen = self._templates.pick(requested, bool(tools))
        template = chosen.template
        messages = messages_to_dicts(request.messages, chosen.view, self._model.name)
        variables = template_variables(kwargs, template.variables, self._tokenizer.special_tokens)
        documents = kwargs.get("documents")
        if marking is not None:
            messages = [marking.message(message) for message in messages]
            tools = marking.value(tools)
            documents = marking.value(documents)
            variables.update((name, marking.value(variables[name])) for name in kwargs.keys() & variables.keys())
        variables["messages"] = messages
        variables["tools"] = tools
        variables["documents"] = documents
        variables["add_generation_prompt"] = request.add_generation_prompt
        items = count_items(request.messages, tools)
        if request.continue_final_message:
            return template.render_open(variables, items), kwargs
        return template.render(variables, items), kwargs

    def _tools(self, request: ChatRequest, kwargs: Mapping[str, Json]) -> Any:
        choice = request.tool_choice
        excluded = choice is not None and choice.mode == "none" and self._settings.exclude_tools_when_tool_choice_none
        if request.tools and not excluded:
            return tools_to_dicts(request.tools)
        return kwargs.get("tools")

    def _encode_prompt(
        self, text: str, options: RequestOptions, marking: Marking | None
    ) -> tuple[Sequence[int], Offsets | None]:
        """Ids of a templated text, and offsets if wanted."""
        if marking is not None and marking.marked:
            plain = marking.tokens.remove_marks(text)
            if marking.tokens.count(plain) != marking.tokens.count(text):
                ids, offsets = marking.tokens.encode_marked(text)
                if options.add_special_tokens:
                    ids, offsets = self._with_edges(ids, offsets)
                return ids, offsets if options.return_token_offsets else None
            text = plain
        ids, found = self._encode(text, options)
        bos = self._tokenizer.bos_id
        if options.add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            # The template wrote the start token, so the tokenizer's own is one too many.
            return ids[1:], None if found is None else found[1:]
        return ids, found

    def _with_edges(self, ids: list[int], offsets: list[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
        """Put around `ids` what the tokenizer puts around a text, but no second start token."""
        before, after = self._edges.before, self._edges.after
        if ids[:1] == before[-1:] == [self._tokenizer.bos_id]:
            before = before[:-1]
        return before + ids + after, [(0, 0)] * len(before) + offsets + [(0, 0)] * len(after)

    def _encode(self, text: str, options: RequestOptions) -> tuple[list[int], list[tuple[int, int]] | None]:
        if options.return_token_offsets:
            return self._tokenizer.encode_with_offsets(text, add_special_tokens=options.add_special_tokens)
        return self._tokenizer.encode(text, add_special_tokens=options.add_special_tokens), None

    def _fit(
        self, ids: Sequence[int], offsets: Offsets | None, options: RequestOptions
    ) -> tuple[Sequence[int], Offsets | None]:
        edges = self._edges if options.add_special_tokens else NO_EDGES
        return fit(ids, offsets, options, self._model.max_model_len, self._tokenizer.truncation_side, edges)

    def _complete(self, request: CompletionRequest, prompt: str | Sequence[int], request_id: str) -> GenerateRequest:
        options = request.options
        offsets: Offsets | None = None
        ids: Sequence[int]
        if isinstance(prompt, str):
            if options.truncate_prompt_tokens is None:
                check_characters(prompt, self._model.max_model_len, self._max_chars)
            ids, offsets = self._encode(prompt, options)
        else:
            self._sampling.check_ids("prompt", prompt)
            ids = prompt
        ids, offsets = self._fit(ids, offsets, options)
        params = self._sampling.decide(
            request.sampling, len(ids), stream=options.stream, extra_args=_transfer_params(options)
        )
        return self._generate_request(options, request_id, ids, offsets, sampling_params=params)

    def _generate_request(
        self, options: RequestOptions, request_id: str, ids: Sequence[int], offsets: Offsets | None, **fields: Any
    ) -> GenerateRequest:
        return GenerateRequest(
            request_id=request_id,
            token_ids=ids,
            token_offsets=offsets,
            model=options.model,
            stream=options.stream,
            stream_options=options.stream_options,
            cache_salt=options.cache_salt,
            priority=options.priority,
            **fields,
        )

    def _check_tool_choice(self, request: ChatRequest) -> None:
        """Tool calls that nobody would read out of the answer are refused (CONTRACT 3.2)."""
        choice = request.tool_choice
        if choice is None or choice.mode == "none" or not request.tools:
            return
        if choice.mode == "named" and all(tool.name != choice.name for tool in request.tools):
            raise BadRequest(
                "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
            )
        if self._output.has_tool_parser:
            return
        if choice.mode == "auto":
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        elif choice.mode == "required":
            text = 'tool_choice="required" requires --tool-call-parser to be set'
        else:
            text = f'tool_choice=function "{choice.name}" requires --tool-call-parser to be set'
        raise BadRequest(text, "tool_choice")

    def _keeps_marks(self, request: ChatRequest) -> bool:
        when = self._output.marks_are_special
        return when == "always" or (
            when == "with_tools"
            and bool(request.tools)
            and not (request.tool_choice is not None and request.tool_choice.mode == "none")
        )

    def _reasoning_ended(self, request: ChatRequest, ids: Sequence[int]) -> bool | None:
        if not self._output.has_reasoning_parser:
            return None
        if not request.include_reasoning:
            return True
        return self._output.reasoning(ids) if self._output.reasoning is not None else None

    def _carried_prompt(self, request: ChatRequest) -> Prompt | None:
        """Ids that another stage already rendered and that travel in `kv_transfer_params`; None where there are none."""
        params = request.options.kv_transfer_params
        if params is None or "prompt_token_ids" not in params or request.options.echo:
            return None
        ids = params["prompt_token_ids"]
        name = "kv_transfer_params.prompt_token_ids"
        if not isinstance(ids, list) or not ids or not all(type(id) is int and id >= 0 for id in ids):
            raise BadRequest(
                "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers. "
                f"(parameter={name})",
                name,
            )
        self._sampling.check_ids(name, ids)
        return Prompt("", ids, None, merge_kwargs(request, self._settings.default_chat_template_kwargs))


def _check_count(name: str, values: Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise BadRequest(f"{name} holds {len(values)} entries, at most {most} are allowed.", name)


def _transfer_params(options: RequestOptions) -> dict[str, Json] | None:
    """Where transfer parameters ride along on the wire; ids that render has used are not sent on."""
    extra: dict[str, Json] = {}
    if options.kv_transfer_params is not None:
        extra["kv_transfer_params"] = {k: v for k, v in options.kv_transfer_params.items() if k != "prompt_token_ids"}
    if options.ec_transfer_params is not None:
        extra["ec_transfer_params"] = options.ec_transfer_params
    return extra or None
