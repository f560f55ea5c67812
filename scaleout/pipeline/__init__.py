"""render → generate → derender, put together. Knows no HTTP."""

from scaleout.pipeline.stages import Front, Stages

__all__ = ["Front", "Stages"]
