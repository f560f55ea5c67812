"""scaleout: LLM serving split into render → generate → derender."""

__version__ = "0.1.0"
