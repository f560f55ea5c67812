"""What one template rendering may cost, and the operations through which a few characters of template could exceed it.

A template is a program out of a model's folder, or out of a trusted request, and it runs on data of strangers. Loops and macros
count steps; time is looked at every few hundred steps; whatever can make much text out of little (`*`, `+`, `join`, `replace`,
padding, formats) predicts the size of its result and refuses before the memory is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from time import thread_time
from typing import Any

from attrs import frozen

STEPS_BETWEEN_LOOKS = 256
"""Reading the clock costs as much as several steps."""

LONG_TEXT = 1 << 16
"""Results from this length on look at the clock: one such operation may cost as much as hundreds of steps."""

MAX_ITEMS = 1_000_000
"""Elements of one list that a template may build."""

MAX_BITS = 1 << 14
"""Size of an integer. No prompt needs larger ones, and `10 ** 10 ** 10` would never end."""

_WIDE_FIELD = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|\{[^{}]*\{[^{]")


class TemplateOverrun(Exception):
    """A template wanted more steps, time, text or memory than it may have."""


@frozen
class TemplateLimits:
    """Bounds of one rendering. A linear template over a long conversation stays far below all of them."""

    seconds: float = 30.0
    """CPU time of the rendering thread; 0 for no limit."""
    max_chars: int = 64 << 20
    steps: int = 100_000
    steps_per_item: int = 1000
    """For each message and tool: templates loop over the conversation a few times, and over a tool's parameters."""

    def budget(self, items: int = 0) -> Budget:
        """A fresh budget for a conversation of `items` messages and tools; templates quadratic in 2000 of them still pass."""
        return Budget(self, self.steps + self.steps_per_item * items + min(items * items, 4_000_000))


class Budget:
    """One rendering's account. `next(budget.steps)` is one step of a loop, written so because that is the cheapest test there is."""

    __slots__ = ("_deadline", "_limits", "steps")

    def __init__(self, limits: TemplateLimits, steps: int) -> None:
        self._limits = limits
        self._deadline: float | None = None
        self.steps: Iterator[bool] = self._count(steps)

    def _count(self, steps: int) -> Iterator[bool]:
        for _ in range(0, steps, STEPS_BETWEEN_LOOKS):
            yield from repeat(True, STEPS_BETWEEN_LOOKS)
            self._look()
        raise TemplateOverrun(f"the chat template ran for more than {steps} steps")

    def _look(self) -> None:
        """Read the clock. It starts with the first look, so that short templates never ask for the time."""
        if not self._limits.seconds:
            return
        now = thread_time()
        if self._deadline is None:
            self._deadline = now + self._limits.seconds
        elif now > self._deadline:
            raise TemplateOverrun(f"the chat template ran for more than {self._limits.seconds:g} s")

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`. Both are within bounds, so the sum is built before it is measured."""
        result = left + right
        kind = type(result)
        if kind is str:
            if len(result) > LONG_TEXT:
                self.check_chars(len(result))
                self._look()
        elif kind is int:
            check_bits(result.bit_length())
        elif isinstance(result, list | tuple | bytes):
            self.check_items(len(result))
        return result

    def multiply(self, left: Any, right: Any) -> Any:
        """`left * right`, predicted for text, lists and large integers."""
        for some, times in ((left, right), (right, left)):
            if isinstance(times, int):
                if isinstance(some, str | bytes):
                    self.check_chars(len(some) * times)
                elif isinstance(some, list | tuple):
                    self.check_items(len(some) * times)
        if isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() + right.bit_length())
        return left * right

    def power(self, left: Any, right: Any) -> Any:
        """`left ** right`, predicted for integers."""
        if isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * max(right, 0))
        return left**right

    def modulo(self, left: Any, right: Any) -> Any:
        """`left % right`: a remainder, or old-style formatting."""
        if isinstance(left, str):
            check_format(left)
            result = left % right
            self.check_chars(len(result))
            return result
        return left % right

    def concat(self, parts: Iterable[Any]) -> str:
        """The `~` operator: all parts as text."""
        texts = [part if type(part) is str else str(part) for part in parts]
        self.check_chars(sum(map(len, texts)))
        return "".join(texts)

    def check_chars(self, length: int) -> None:
        check_chars(length, self._limits.max_chars)

    def check_items(self, length: int) -> None:
        check_items(length)

    def gather(self, pieces: Iterable[str]) -> str:
        """The output, measured while it comes."""
        kept: list[str] = []
        total = 0
        limit = self._limits.max_chars
        for piece in pieces:
            total += len(piece)
            if total > limit:
                check_chars(total, limit)
            kept.append(piece)
        return "".join(kept)


def check_chars(length: int, limit: int) -> None:
    if length > limit:
        raise TemplateOverrun(f"the chat template wrote more than {limit} characters")


def check_items(length: int) -> None:
    if length > MAX_ITEMS:
        raise TemplateOverrun(f"the chat template built a list of more than {MAX_ITEMS} elements")


def check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateOverrun(f"the chat template computed an integer of more than {MAX_BITS} bits")


def check_format(text: str) -> None:
    """Field widths of six digits or more, or out of the arguments, are how a short format makes a huge text."""
    if _WIDE_FIELD.search(text):
        raise TemplateOverrun("the chat template formats with an unbounded width")


def bounded_join(pieces: Iterable[str], limit: int, separator: str = "") -> str:
    """`separator.join(pieces)` after measuring."""
    texts = list(pieces)
    check_chars(sum(map(len, texts)) + len(separator) * len(texts), limit)
    return separator.join(texts)


# ---------------------------------------------------------------------------------------------- methods and filters

Prediction = Callable[..., int]
"""Object and arguments → characters of the result."""


def _replaced(text: str, old: str, new: str, count: int = -1) -> int:
    found = text.count(old)
    return len(text) + (found if count is None or count < 0 else min(found, count)) * max(len(new) - len(old), 0)


def _padded(text: str, width: int = 80, *_: Any, **__: Any) -> int:
    return max(len(text), width)


def _translated(text: str, table: Any) -> int:
    longest = (
        max((len(v) for v in table.values() if isinstance(v, str)), default=1) if isinstance(table, Mapping) else 1
    )
    return len(text) * max(longest, 1)


METHODS: Mapping[str, Prediction] = {
    "replace": _replaced,
    "ljust": _padded,
    "rjust": _padded,
    "center": _padded,
    "zfill": _padded,
    "expandtabs": lambda text, size=8: len(text) + text.count("\t" if isinstance(text, str) else b"\t") * size,
    "translate": _translated,
    "to_bytes": lambda number, length=1, *_, **__: length,
}
"""Methods of str, bytes and int that make much of little, by what they would make."""

LIST_METHODS = frozenset({"split", "rsplit", "splitlines"})


def bound_method(method: Any, limit: int) -> Any:
    """A bound builtin method that measures before it works; `method` itself where it cannot grow."""
    name = method.__name__
    predict = METHODS.get(name)
    owner = method.__self__
    if predict is not None:

        def measured(*args: Any, **kwargs: Any) -> Any:
            check_chars(predict(owner, *args, **kwargs), limit)
            return method(*args, **kwargs)

        return measured
    if name == "join":
        return lambda pieces: bounded_join(pieces, limit, owner) if isinstance(owner, str) else method(pieces)
    if name in LIST_METHODS:

        def split(*args: Any, **kwargs: Any) -> Any:
            if len(owner) > MAX_ITEMS:
                marker = args[0] if args else kwargs.get("sep")
                check_items(owner.count(marker) if isinstance(marker, str) and marker else len(owner) // 2)
            return method(*args, **kwargs)

        return split
    return method


FILTERS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Any], int]] = {
    "center": lambda a, k, v: _number(a, k, 0, "width"),
    "indent": lambda a, k, v: len(str(v)) + (str(v).count("\n") + 1) * _width(a, k, 0, "width"),
    "replace": lambda a, k, v: _replaced(str(v), str(a[0]), str(a[1])) if len(a) > 1 else 0,
    "wordwrap": lambda a, k, v: len(str(v)) * (1 + _width(a, k, 2, "wrapstring")),
    "batch": lambda a, k, v: _number(a, k, 0, "linecount") * 64,
    "slice": lambda a, k, v: _number(a, k, 0, "slices") * 64,
    "tojson": lambda a, k, v: _width(a, k, 1, "indent") << 12,
    "list": lambda a, k, v: _checked_items(v),
    "round": lambda a, k, v: abs(_number(a, k, 0, "precision")) << 14,
}
"""Filters that make much of little: arguments, keywords and value → characters of the result, or a sum that is as costly."""


def _checked_items(value: Any) -> int:
    check_items(len(value) if hasattr(value, "__len__") else 0)
    return 0


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _number(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> int:
    value = _argument(args, kwargs, position, name)
    return value if isinstance(value, int) else 0


def _width(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> int:
    value = _argument(args, kwargs, position, name)
    return value if isinstance(value, int) else len(value) if isinstance(value, str) else 0
