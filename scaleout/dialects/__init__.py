"""Public API shapes ↔ nouns. Knows no tokens, no output format, no engine and no HTTP."""
