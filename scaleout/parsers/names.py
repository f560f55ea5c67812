"""What may be a function's name (FORMATS R14)."""

from __future__ import annotations

import re

_BAD = re.compile(r"""[\s"'`<>{}\ud800-\udfff]""")


def good_name(name: str) -> bool:
    """Is this trimmed text a name? It is not empty and holds no whitespace, quotes, angle or curly brackets, and no marker."""
    return bool(name) and _BAD.search(name) is None
