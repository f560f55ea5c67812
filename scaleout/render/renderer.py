"""The path of render: validate → template → encode → fit into the context → sampling parameters. Synchronous, safe in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from attrs import evolve, frozen

from scaleout.config import Limits
from scaleout.core import ChatRequest, CompletionRequest, GenerateRequest, Json, Part, RequestOptions
from scaleout.core.media import MediaRef, MediaSet
from scaleout.errors import BadRequest
from scaleout.render.attribution import cut_spans
from scaleout.render.media_parts import MODALITY_OF, read_media
from scaleout.render.multimodal import Multimodal, Wishes
from scaleout.render.placement import expand_ids
from scaleout.render.prompt import ModelFacts, Prompt, PromptWriter, RenderSettings
from scaleout.render.prompt_length import NO_EDGES, check_length, check_truncation, positions_to_keep
from scaleout.render.sampling import SamplingDefaults, SamplingRules
from scaleout.render.variables import merge_kwargs
from scaleout.tokenizer import Tokenizer

T = TypeVar("T")


@frozen
class OutputFacts:
    """What render is told about the output format, so that it need not know one.

    `reasoning`: prompt ids → has the prompt already closed the reasoning (True), is it open or to come (False), unknown (None).
    `tool_constraint`: the `structured_outputs` that make the model call a tool after this prompt; None where none is asked for.
    `marks_are_special`: whether special tokens of the answer carry meaning: never, when tools may be called, or always.
    """

    has_tool_parser: bool = False
    has_reasoning_parser: bool = False
    reasoning: Callable[[Sequence[int]], bool | None] | None = None
    tool_constraint: Callable[[ChatRequest, Sequence[int]], Mapping[str, Json] | None] | None = None
    marks_are_special: Literal["never", "with_tools", "always"] = "never"


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
        multimodal: Multimodal | None = None,
    ) -> None:
        self.multimodal = multimodal
        self._model = model
        self._limits = limits or Limits()
        self._settings = settings or RenderSettings()
        self._output = output or OutputFacts()
        self._truncation_side = tokenizer.truncation_side
        self._encode = partial(tokenizer.encode, add_special_tokens=False)
        self._sampling = SamplingRules(
            self._limits, model.max_model_len, model.vocab_size, defaults or SamplingDefaults()
        )
        self._prompts = PromptWriter(tokenizer, model, self._settings, self._limits, on_neutralised, multimodal)

    def render_chat(self, request: ChatRequest, *, request_id: str, media: MediaSet | None = None) -> GenerateRequest:
        """One conversation → one request for an engine.

        Raises `BadRequest` for everything that cannot work; `MediaWanted` where it names media and `media` is None.
        """
        options = request.options
        self._check_tool_choice(request)
        self._sampling.check_budget(request.sampling)
        check_truncation(options, self._model.max_model_len)
        prompt = self._fit(self._carried_prompt(request) or self._prompts.write(request, media), options)
        constraint = None
        if self._output.tool_constraint is not None and request.tools:
            constraint = self._output.tool_constraint(request, prompt.token_ids)
        params = self._sampling.decide(
            request.sampling,
            len(prompt.token_ids),
            stream=options.stream,
            logprobs_name="top_logprobs",
            extra_args=_transfer_params(options),
            structured_outputs=constraint,
            skip_special_tokens=False if self._keeps_marks(request) else None,
        )
        told = self._output.has_reasoning_parser and prompt.kwargs
        return _generate_request(
            options,
            request_id,
            prompt,
            sampling_params=params,
            reasoning_ended=self._reasoning_ended(request, prompt.token_ids),
            reasoning_parser_kwargs={"chat_template_kwargs": prompt.kwargs} if told else None,
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

    def render_prompt(self, request: ChatRequest, media: MediaSet | None = None) -> Prompt:
        """Template and encode one conversation, whatever its length in ids. Raises `BadRequest`, `MediaWanted`."""
        return self._prompts.write(request, media)

    def content_refs(self, request: GenerateRequest) -> list[MediaRef]:
        """What a token request names in `content_parts`. Raises `BadRequest` for what this model does not take."""
        refs = []
        for i, part in enumerate(request.content_parts or ()):
            kind = part.get("type")
            if kind in MODALITY_OF:
                refs.append(read_media(Part(str(kind), None, part), f"content_parts.{i}"))
            elif kind != "text":
                raise BadRequest(f"content_parts.{i}: Unknown part type: {kind}", f"content_parts.{i}.type")
        for ref in refs:
            self._needed().require(ref.modality, self._model.name)
        return refs

    def with_features(self, request: GenerateRequest, refs: Sequence[MediaRef], media: MediaSet) -> GenerateRequest:
        """A token request whose media are tensors, at the places of their placeholders. Raises `BadRequest`."""
        if request.features is not None:
            return evolve(request, features=self._needed().fill(request.features))
        if not refs:
            return evolve(request, content_parts=None)
        multimodal = self._needed()
        multimodal.check_counts(refs)
        wishes = Wishes(cache_salt=request.cache_salt)
        prepared = multimodal.prepare(refs, media, wishes, self._model.max_model_len)
        ids, features = expand_ids(request.token_ids, multimodal, prepared, self._encode)
        return evolve(request, token_ids=ids, features=features, content_parts=None)

    def finish(self, request: GenerateRequest) -> GenerateRequest:
        """A token request whose features are what the model's own code takes, for an engine that knows no other form."""
        if request.features is None or self.multimodal is None:
            return request
        return evolve(request, features=self.multimodal.finish(request.features))

    def _needed(self) -> Multimodal:
        if self.multimodal is None:
            raise BadRequest(f"{self._model.name} is not a multimodal model", "features")
        return self.multimodal

    def _complete(self, request: CompletionRequest, prompt: str | Sequence[int], request_id: str) -> GenerateRequest:
        options = request.options
        if isinstance(prompt, str):
            self._prompts.check_characters(prompt, options)
            ids, offsets = self._prompts.encode(prompt, options, options.return_token_offsets)
            whole = Prompt(prompt, ids, offsets)
        else:
            self._sampling.check_ids("prompt", prompt)
            whole = Prompt("", prompt)
        fitting = self._fit(whole, options)
        params = self._sampling.decide(
            request.sampling,
            len(fitting.token_ids),
            stream=options.stream,
            extra_args=_transfer_params(options),
        )
        return _generate_request(options, request_id, fitting, sampling_params=params)

    def _fit(self, prompt: Prompt, options: RequestOptions) -> Prompt:
        """The prompt, cut if the request asks for it. Raises `BadRequest` where it does not fit into the context."""
        edges = self._prompts.edges if options.add_special_tokens else NO_EDGES
        length = self._model.max_model_len
        kept = positions_to_keep(prompt.token_ids, options, length, self._truncation_side, edges)
        check_length(len(prompt.token_ids if kept is None else kept), length)
        if kept is None:
            return prompt
        if prompt.features is not None:
            raise BadRequest(
                "A prompt with media cannot be cut: truncate_prompt_tokens is smaller than its length of "
                f"{len(prompt.token_ids)} tokens.",
                "truncate_prompt_tokens",
            )
        return evolve(
            prompt,
            token_ids=_at(prompt.token_ids, kept),
            offsets=None if prompt.offsets is None else _at(prompt.offsets, kept),
            mask=None if prompt.mask is None else _at(prompt.mask, kept),
            spans=None if prompt.spans is None else cut_spans(prompt.spans, kept),
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
        ids = None if params is None or request.options.echo else params.get("prompt_token_ids")
        if ids is None:
            return None
        name = "kv_transfer_params.prompt_token_ids"
        if not isinstance(ids, list) or not ids or not all(type(id) is int and id >= 0 for id in ids):
            raise BadRequest(
                "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers. "
                f"(parameter={name})",
                name,
            )
        self._sampling.check_ids(name, ids)
        return Prompt("", ids, kwargs=merge_kwargs(request, self._settings.default_chat_template_kwargs))


def _at(values: Sequence[T], positions: Sequence[int]) -> list[T]:
    return [values[i] for i in positions]


def _generate_request(options: RequestOptions, request_id: str, prompt: Prompt, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        token_ids=prompt.token_ids,
        token_offsets=prompt.offsets,
        features=prompt.features,
        model=options.model,
        stream=options.stream,
        stream_options=options.stream_options,
        cache_salt=options.cache_salt,
        priority=options.priority,
        assistant_tokens_mask=prompt.mask,
        spans=prompt.spans,
        **fields,
    )


def _transfer_params(options: RequestOptions) -> dict[str, Json] | None:
    """Where transfer parameters ride along on the wire; ids that render has used are not sent on."""
    extra: dict[str, Json] = {}
    if options.kv_transfer_params:
        extra["kv_transfer_params"] = {k: v for k, v in options.kv_transfer_params.items() if k != "prompt_token_ids"}
    if options.ec_transfer_params:
        extra["ec_transfer_params"] = options.ec_transfer_params
    return extra or None
