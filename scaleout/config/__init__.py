"""How a server is set up, decided once at start. Knows no HTTP, no tokenizer and no engine: it only says what they shall do."""

from scaleout.config.settings import EngineOptions, Limits, Mode, ModeConfig

__all__ = ["EngineOptions", "Limits", "Mode", "ModeConfig"]
