"""Compile and run chat templates the way transformers does, within bounds. The only module that knows jinja2."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from scaleout.errors import BadRequest
from scaleout.render.template_bounds import (
    FILTERS,
    Budget,
    TemplateLimits,
    TemplateOverrun,
    bound_method,
    bounded_join,
    check_chars,
    check_format,
)
from scaleout.render.template_json import to_json
from scaleout.render.template_marks import BLOCK_END, BLOCK_START, CUT, block_ranges, with_cut

MAX_SOURCE_CHARS = 1 << 20
"""Length of a template. The longest in public models have some ten thousand characters; compiling is linear in it."""

STEPS_OF_A_CALL = 4
"""A macro call costs as much as several loop steps."""

_TRACKING = ContextVar("generation blocks are tracked", default=False)

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset(
    {"first", "last", "index", "index0", "revindex", "revindex0", "length", "previtem", "nextitem", "depth", "depth0"}
)
_TEXT_METHODS = frozenset(
    {"startswith", "endswith", "strip", "lstrip", "rstrip", "lower", "upper", "title", "find", "count"}
)


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}`: what lies between is the model's own text. See `ChatTemplate.render_spans`."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        if not text or not _TRACKING.get():
            return text
        return f"{BLOCK_START}{text}{BLOCK_END}"


class _BudgetContext(Context):
    """A rendering's variables together with its budget."""

    budget: Budget

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        context = super().derived(locals)
        context.budget = self.budget  # type: ignore[attr-defined]
        return context


class _BoundedCode(CodeGenerator):
    """Python code in which every loop step and macro call is counted, and every growing operator is measured."""

    def visit_EnvironmentAttribute(self, node: nodes.EnvironmentAttribute, frame: Frame) -> None:
        if node.name == "step":
            self.write("next(context.budget.steps)")
        else:
            super().visit_EnvironmentAttribute(node, frame)

    def _measured(self, method: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"context.budget.{method}(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._measured("add", node, frame)

    def visit_Mul(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._measured("multiply", node, frame)

    def visit_Pow(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._measured("power", node, frame)

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._measured("modulo", node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("context.budget.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def _count_steps(tree: nodes.Template) -> None:
    """Put a counted step into every loop body, loop condition and macro."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _step_statement(loop.lineno))
        if loop.test is not None:
            loop.test = nodes.And(nodes.EnvironmentAttribute("step"), loop.test)
    callables: list[nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
    for callable in callables:
        callable.body[:0] = [_step_statement(callable.lineno) for _ in range(STEPS_OF_A_CALL)]


def _step_statement(line: int) -> nodes.Node:
    return nodes.ExprStmt(nodes.EnvironmentAttribute("step"), lineno=line)


class _TemplateNamespace(Namespace):
    """jinja2's namespace without underscore names, so that nothing private can be stored on it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _refuse_private(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot store {name!r} on a namespace")


class _TemplateDict:
    """The global `dict`, callable without being the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, with bounds."""

    code_generator_class = _BoundedCode
    context_class = _BudgetContext
    intercepted_binops = frozenset({"*", "**", "%"})
    """Not folded while compiling, where no budget watches; `_BoundedCode` measures them when they run."""

    def __init__(self, max_chars: int) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols])
        self.max_chars = max_chars
        self.concat = lambda pieces: bounded_join(pieces, max_chars)  # type: ignore[method-assign]
        self.filters["tojson"] = to_json
        for name, predict in FILTERS.items():
            self.filters[name] = self._bound_filter(self.filters[name], predict)
        self.filters["join"] = self._join(self.filters["join"])
        self.filters["format"] = self._format(self.filters["format"])
        self.filters["attr"] = jinja2.pass_environment(lambda env, obj, name: env.getattr_only(obj, name))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace
        del self.globals["lipsum"]

    def _bound_filter(self, filter: Any, predict: Callable[..., int]) -> Any:
        passes = getattr(filter, "jinja_pass_arg", None)

        def measured(*args: Any, **kwargs: Any) -> Any:
            value, *rest = args[1:] if passes else args
            check_chars(predict(rest, kwargs, value), self.max_chars)
            return filter(*args, **kwargs)

        if passes:
            measured.jinja_pass_arg = passes  # type: ignore[attr-defined]
        return measured

    def _join(self, filter: Any) -> Any:
        @jinja2.pass_eval_context
        def join(context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
            items = list(value)
            characters = len(str(d)) * len(items)
            if attribute is None:
                characters += sum(len(item) for item in items if isinstance(item, str))
            check_chars(characters, self.max_chars)
            return filter(context, items, d, attribute)

        return join

    def _format(self, filter: Any) -> Any:
        def format(value: Any, *args: Any, **kwargs: Any) -> Any:
            check_format(str(value))
            return filter(value, *args, **kwargs)

        return format

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _count_steps(source)
        return super()._generate(source, *args, **kwargs)

    # Attribute access is most of a template's work. The short cuts below give what the sandbox would give, without its questions.

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_ATTRIBUTES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in _TEXT_METHODS:
                return getattr(obj, attribute)
        elif (kind is LoopContext and attribute in _LOOP_ATTRIBUTES) or (
            kind is _TemplateNamespace and not attribute.startswith("_")
        ):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return self._bound(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return self._bound(super().getitem(obj, argument))

    def getattr_only(self, obj: Any, name: str) -> Any:
        """The `attr` filter: attributes, never items."""
        try:
            getattr(obj, str(name))
        except AttributeError:
            return self.undefined(obj=obj, name=name)
        return self.getattr(obj, str(name))

    def _bound(self, value: Any) -> Any:
        return bound_method(value, self.max_chars) if isinstance(value, BuiltinMethodType) else value

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        def format(*args: Any, **kwargs: Any) -> str:
            check_format(text)
            result: str = wrapped(*args, **kwargs)
            check_chars(len(result), self.max_chars)
            return result

        return format


@lru_cache(maxsize=4)
def _environment(max_chars: int) -> _ChatEnvironment:
    return _ChatEnvironment(max_chars)


class ChatTemplate:
    """One compiled template. Immutable and safe to use from several threads.

    `variables`: names it reads from outside. `text`: its literal text and string constants. Raises `BadRequest` for bad syntax.
    """

    def __init__(self, source: str, limits: TemplateLimits | None = None) -> None:
        self.source = source
        self.limits = limits or TemplateLimits()
        self._environment = _environment(self.limits.max_chars)
        if len(source) > MAX_SOURCE_CHARS:
            raise BadRequest(f"The chat template is longer than {MAX_SOURCE_CHARS} characters.", "chat_template")
        try:
            self.tree = self._environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(self.tree)) - self._environment.globals.keys()
            self.has_generation_blocks = any(
                isinstance(block.call, nodes.Call) and isinstance(block.call.node, nodes.ExtensionAttribute)
                for block in self.tree.find_all(nodes.CallBlock)
            )
            self.constants = frozenset(c.value for c in self.tree.find_all(nodes.Const) if isinstance(c.value, str))
            self.attributes = frozenset(a.attr for a in self.tree.find_all(nodes.Getattr)) | self.constants
            self._template = self._environment.from_string(source)
            self._globals = dict(self._template.globals)
        except jinja2.TemplateError as e:
            raise BadRequest(_plain(e), "chat_template") from None
        except (RecursionError, SyntaxError, MemoryError):
            raise BadRequest("The chat template is nested too deeply.", "chat_template") from None

    def render(self, variables: Mapping[str, Any], items: int = 0) -> str:
        """The prompt. `items` (messages and tools) sets how many steps are reasonable. Raises `BadRequest` for all that goes wrong."""
        budget = self.limits.budget(items)
        context = _BudgetContext(self._environment, {**self._globals, **variables}, None, self._template.blocks)
        context.budget = budget
        try:
            return budget.gather(self._template.root_render_func(context))
        except TemplateOverrun as e:
            raise BadRequest(f"{e} (parameter=chat_template)", "chat_template") from None
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as e:
            raise BadRequest(
                _plain(e), "chat_template" if isinstance(e, RecursionError | MemoryError) else "messages"
            ) from None

    def render_spans(self, variables: Mapping[str, Any], items: int = 0) -> tuple[str, list[tuple[int, int]]]:
        """The prompt, and the character range of each `{% generation %}` block in it, in order."""
        token = _TRACKING.set(True)
        try:
            marked = self.render(variables, items)
        finally:
            _TRACKING.reset(token)
        return block_ranges(marked)

    def render_open(self, variables: Mapping[str, Any], items: int = 0) -> str:
        """The prompt up to the end of the final message's content, so that the model continues it. `messages` is not changed.

        White space at the cut is kept where the template keeps it, as transformers does. Raises `BadRequest` where there is no
        text to continue, or the template does not show it.
        """
        messages = list(variables["messages"])
        messages[-1] = with_cut(messages[-1])
        text = self.render({**variables, "messages": messages}, items)
        cut = text.rfind(CUT)
        if cut < 0:
            raise BadRequest(
                "continue_final_message is set but the final message does not appear in the chat after applying the chat template.",
                "continue_final_message",
            )
        return text[:cut] if text.startswith(CUT + " ", cut) else text[:cut].rstrip()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _plain(error: BaseException) -> str:
    """An error's text without what it says about this process."""
    if isinstance(error, RecursionError):
        return "The chat template calls itself too deeply."
    if isinstance(error, MemoryError):
        return "The chat template needs too much memory."
    text = error.message if isinstance(error, jinja2.TemplateError) and error.message else str(error)
    return _ADDRESS.sub("", text) or type(error).__name__
