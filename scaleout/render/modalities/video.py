"""Films. No family is served yet."""

from __future__ import annotations

from scaleout.render.modality import MediaLimits, MediaModel


def open_modality(model: MediaModel, limits: MediaLimits) -> None:
    return None
