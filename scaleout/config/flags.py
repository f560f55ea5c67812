"""The table of flags, derived from the settings; everything that reads or prints settings goes through it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import frozen

from scaleout.config.media import MediaOptions
from scaleout.config.options import SWITCH, TEXT, Option
from scaleout.config.settings import EngineOptions, Limits, ModeConfig
from scaleout.config.web import WebOptions


@frozen
class Flag:
    """One setting with its names. `owner` is the field of ModeConfig that holds it, empty for ModeConfig itself."""

    name: str
    option: Option
    owner: str
    field: str
    default: Any

    @property
    def env(self) -> str:
        return "SCALEOUT_" + self.name.replace("-", "_").upper()


def _flags_of(owner: str, cls: type[attrs.AttrsInstance]) -> Iterable[Flag]:
    for attribute in attrs.fields(cls):
        option = attribute.metadata.get("option")
        if option is not None:
            name = (option.name or attribute.name.replace("_", "-")).removeprefix("--")
            yield Flag(name, option, owner, attribute.name, attribute.default)


CONFIG = Flag(
    "config",
    Option(TEXT, "start", "YAML or TOML file; its keys are the names of flags. A folder: the file <mode>.toml in it."),
    "",
    "",
    None,
)
TOKENS_ONLY = Flag(
    "tokens-only", Option(SWITCH, "start", "Token ids in, token ids out (scaleout serve)."), "", "", False
)

FLAGS: Mapping[str, Flag] = {
    flag.name: flag
    for flag in (
        CONFIG,
        TOKENS_ONLY,
        *_flags_of("", ModeConfig),
        *_flags_of("engine", EngineOptions),
        *_flags_of("limits", Limits),
        *_flags_of("web", WebOptions),
        *_flags_of("media", MediaOptions),
    )
}
"""Flag name without dashes → flag."""

ALIASES: Mapping[str, Flag] = {
    alias.removeprefix("--"): flag for flag in FLAGS.values() for alias in flag.option.aliases
}
OPPOSITES: Mapping[str, Flag] = {
    **{f"no-{flag.name}": flag for flag in FLAGS.values() if flag.option.kind.switch},
    **{flag.option.opposite.removeprefix("--"): flag for flag in FLAGS.values() if flag.option.opposite},
}


def find_flag(name: str) -> Flag | None:
    """By name or alias, without dashes in front."""
    return FLAGS.get(name) or ALIASES.get(name)


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """` (did you mean …?)`, or nothing when nothing is near."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""
