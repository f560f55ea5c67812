"""Public API shapes ↔ nouns. Knows no tokens, no output format, no engine and no HTTP."""

from scaleout.dialects import chat, completions, messages
from scaleout.dialects.dialect import Dialect, Request

DIALECTS: tuple[Dialect, ...] = (chat, completions, messages)

__all__ = ["DIALECTS", "Dialect", "Request"]
