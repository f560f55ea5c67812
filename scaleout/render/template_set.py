"""Which template a request is rendered with: its own (if trusted), the operator's, or one of the model's (CONTRACT 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

from attrs import frozen

from scaleout.errors import BadRequest, ConfigError
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.content_format import ContentFormat
from scaleout.render.messages import TemplateView
from scaleout.render.template_bounds import TemplateLimits

REQUEST_TEMPLATES = 32
"""Compiled templates of trusted requests that are kept; one client tends to send the same one."""


def named_template(given: str | None, own: str | Mapping[str, str] | None) -> str | None:
    """The operator's template: as it stands, or the one of the model's that has this name. Raises ConfigError listing the names."""
    if given is None or "{" in given or "\n" in given:
        return given
    names = {"default": own} if isinstance(own, str) else dict(own or {})
    if given in names:
        return names[given]
    has = f"the model has {', '.join(sorted(names))}" if names else "the model has none at all"
    raise ConfigError(
        f"--chat-template {given}: there is no such file, it is no template, and no template of the model has this name; {has}"
    )


@frozen
class ViewedTemplate:
    """A compiled template, and how it wants to see messages."""

    template: ChatTemplate
    view: TemplateView


class TemplateSet:
    """The templates of one server. Compiles each once; safe to use from several threads.

    `own` is the model's: one template, several by name, or none. `override` is the operator's `--chat-template`.
    """

    def __init__(
        self,
        own: str | Mapping[str, str] | None,
        override: str | None = None,
        *,
        trust_requests: bool = False,
        content_format: ContentFormat | None = None,
        limits: TemplateLimits | None = None,
    ) -> None:
        self._own = {"default": own} if isinstance(own, str) else dict(own or {})
        self._override = override
        self._trust_requests = trust_requests
        self._content_format = content_format
        self._limits = limits or TemplateLimits()
        self._compile = lru_cache(REQUEST_TEMPLATES + len(self._own) + 1)(self._compile_now)

    def prepare(self) -> None:
        """Compile the server's own templates now. One that does not compile is reported to the requests that need it."""
        for source in filter(None, (self._override, *self._own.values())):
            with suppress(BadRequest):
                self._compile(source)

    def pick(self, requested: str | None, has_tools: bool) -> ViewedTemplate:
        """The template for a request that brings `requested` (a template, or the name of one of the model's) or nothing.

        Raises `BadRequest` where the request's is not trusted, none is there, or it does not compile.
        """
        if requested is not None and not self._trust_requests:
            raise BadRequest(
                "Chat template is passed with request, but --trust-request-chat-template is not set. "
                "Refused request with untrusted chat template.",
                "chat_template",
            )
        if requested:
            return self._compile(self._own.get(requested, requested))
        if self._override is not None:
            return self._compile(self._override)
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self._own:
                return self._compile(self._own[name])
        if self._own:
            names = ", ".join(sorted(self._own))
            raise BadRequest(
                f"This model has several chat templates and none of them is the default. Choose one with --chat-template: {names}.",
                "chat_template",
            )
        raise BadRequest(
            "This model has no chat template, so it cannot render a conversation. Start the server with --chat-template "
            "(a file or the template itself), or send a plain prompt to /v1/completions.",
            "chat_template",
        )

    def _compile_now(self, source: str) -> ViewedTemplate:
        template = ChatTemplate(source, self._limits)
        return ViewedTemplate(template, TemplateView.of(template, self._content_format))
