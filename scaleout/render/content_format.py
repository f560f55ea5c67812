"""How a template wants message content: as text ("string"), or as a list of parts that it loops over ("openai")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from attrs import define, field

ContentFormat = Literal["string", "openai"]


def detect_content_format(tree: Any) -> ContentFormat:
    """Look for a loop over some message's content in a template's syntax tree (`ChatTemplate.tree`).

    Followed are names given to the messages, to one message or to its content, slices and filters of all these, and macro
    parameters that are fed with them. A loop over a variable called `content` outside macros counts too.
    """
    return "openai" if _Reading(tree).loops_over_content() else "string"


@define
class _Reading:
    """Names in one template that stand for the list of messages, one message, or a message's content."""

    tree: Any
    lists: set[str] = field(factory=lambda: {"messages"})
    messages: set[str] = field(factory=set)
    contents: set[str] = field(factory=set)

    def loops_over_content(self) -> bool:
        while self._learn():
            pass
        if any(self._is_content(loop.iter) for loop in _find(self.tree, "For")):
            return True
        in_macros = {id(loop) for macro in _find(self.tree, "Macro") for loop in _find(macro, "For")}
        return any(
            _kind(loop.iter) == "Name" and loop.iter.name == "content" and id(loop) not in in_macros
            for loop in _find(self.tree, "For")
        )

    def _learn(self) -> bool:
        """One pass over assignments, loops and macro calls. True if it found a new name."""
        known = len(self.lists) + len(self.messages) + len(self.contents)
        for node in _find(self.tree, "Assign"):
            if _kind(node.target) == "Name":
                self._name(node.target.name, node.node)
        for loop in _find(self.tree, "For"):
            if _kind(loop.target) == "Name" and self._is_list(loop.iter):
                self.messages.add(loop.target.name)
        macros = {macro.name: macro for macro in _find(self.tree, "Macro")}
        for call in _find(self.tree, "Call"):
            macro = macros.get(call.node.name) if _kind(call.node) == "Name" else None
            if macro is None:
                continue
            for parameter, argument in zip(macro.args, call.args, strict=False):
                self._name(parameter.name, argument)
            for keyword in call.kwargs:
                self._name(keyword.key, keyword.value)
        return len(self.lists) + len(self.messages) + len(self.contents) > known

    def _name(self, name: str, value: Any) -> None:
        if self._is_list(value):
            self.lists.add(name)
        elif self._is_message(value):
            self.messages.add(name)
        elif self._is_content(value):
            self.contents.add(name)

    def _is_list(self, node: Any) -> bool:
        node = _bare(node)
        return _kind(node) == "Name" and node.name in self.lists

    def _is_message(self, node: Any) -> bool:
        node = _bare(node)
        if _kind(node) == "Name":
            return node.name in self.messages
        return _kind(node) == "Getitem" and self._is_list(node.node)

    def _is_content(self, node: Any) -> bool:
        node = _bare(node)
        match _kind(node):
            case "Name":
                return node.name in self.contents
            case "Getattr":
                return node.attr == "content" and self._is_message(node.node)
            case "Getitem":
                key = node.arg
                return _kind(key) == "Const" and key.value == "content" and self._is_message(node.node)
            case "CondExpr":
                return self._is_content(node.expr1) or self._is_content(node.expr2)
        return False


def _bare(node: Any) -> Any:
    """The expression under filters and slices."""
    while True:
        if (_kind(node) == "Filter" and node.node is not None) or (
            _kind(node) == "Getitem" and _kind(node.arg) == "Slice"
        ):
            node = node.node
        else:
            return node


def _kind(node: Any) -> str:
    return type(node).__name__


def _find(node: Any, kind: str) -> Iterator[Any]:
    """All nodes of a kind below `node`, itself included."""
    if _kind(node) == kind:
        yield node
    for child in node.iter_child_nodes():
        yield from _find(child, kind)


def asks_for_null_content(tree: Any) -> bool:
    """Whether the template asks if a message's content is none, and so wants to see null as null."""
    reading = _Reading(tree)
    while reading._learn():
        pass
    return any(test.name == "none" and reading._is_content(test.node) for test in _find(tree, "Test"))
