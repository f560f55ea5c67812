"""Public API shapes ↔ nouns. Knows no tokens, no output format, no engine and no HTTP."""

from scaleout.dialects import chat, completions, messages, responses
from scaleout.dialects.dialect import Dialect, Request

DIALECTS: tuple[Dialect, ...] = (chat, completions, messages, responses)

__all__ = ["DIALECTS", "Dialect", "Request"]
