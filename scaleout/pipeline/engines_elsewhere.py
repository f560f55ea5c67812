"""The part of the configuration that is about engines elsewhere, in the words of the remote engine."""

from __future__ import annotations

from scaleout.config import ModeConfig
from scaleout.generate.options import RemoteOptions


def remote_options(config: ModeConfig) -> RemoteOptions:
    given = config.engine
    return RemoteOptions(
        urls=given.urls,
        dialect=given.dialect,
        api_key=given.api_key,
        models=given.models or (config.model, *config.served_model_names),
        check=given.check,
        connect_timeout=given.connect_timeout,
        silence=given.silence,
        health_interval=given.health_interval,
    )
