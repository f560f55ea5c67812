"""Finding many fixed spellings in text at once: a regular expression shaped like the tree of their beginnings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_END = ""


def longest_of(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches, at each place, the longest of `words`. Thousands of words cost no more than a few."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[_END] = None
    return re.compile(_branch(tree) if tree else r"(?!)", re.DOTALL)


def _branch(node: dict[str, Any]) -> str:
    # A chain without forks is one literal; only forks recurse, so long words do not nest.
    literal = ""
    while len(node) == 1:
        ((char, node),) = node.items()
        if char == _END:
            return literal
        literal += re.escape(char)
    ends = _END in node
    choices = [re.escape(char) + _branch(below) for char, below in node.items() if char != _END]
    return f"{literal}(?:{'|'.join(choices)}){'?' if ends else ''}"
