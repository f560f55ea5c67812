"""Sources → one ModeConfig, or one error that lists everything that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from scaleout.config.checks import conflicts, idle_settings, meet_peer_flags
from scaleout.config.flags import FLAGS
from scaleout.config.media import MediaOptions
from scaleout.config.settings import EngineOptions, Limits, Mode, ModeConfig
from scaleout.config.sources import Given, Source, read_argv, read_environ, read_file
from scaleout.config.web import WebOptions
from scaleout.errors import ConfigError

SWITCH = "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"
STARTS = "`scaleout launch render MODEL`, `scaleout serve MODEL [--tokens-only]`, or SCALEOUT_MODE=" + "|".join(Mode)
COMMANDS = ("launch render", "serve")


@frozen
class Claim:
    """One place that chooses a mode."""

    mode: Mode
    how: str


def load(argv: Sequence[str], environ: Mapping[str, str]) -> ModeConfig:
    """See `ModeConfig.load`."""
    problems: list[str] = []
    environ = _without_bad_switch(environ, problems)
    command = next((words for words in COMMANDS if list(argv[: len(words.split())]) == words.split()), "")
    flags, words = read_argv(argv[len(command.split()) :])
    variables = read_environ(environ)
    problems += flags.problems + variables.problems

    claims = _claims(command, flags, environ.get("SCALEOUT_MODE"), problems)
    file = Source()
    chosen = flags.settings.pop("config", None) or variables.settings.pop("config", None)
    if chosen is not None:
        path = _file_path(chosen, claims)
        if not path.is_dir():
            file, mode_there = read_file(path)
            problems += file.problems
            claims += _claims_of_file(path, file, mode_there, problems)
    mode = _agreed(claims, problems)

    _take_model(words, flags, problems)
    given = {**file.settings, **variables.settings, **flags.settings}
    config = _build(mode, claims, _read_all(given, problems))
    problems += _scale_out_conflicts(claims, given, config, environ)
    config, notes = meet_peer_flags(config, {**file.peer, **flags.peer}, problems)
    problems += conflicts(config)
    if problems:
        raise ConfigError(_listed(problems))
    return evolve(config, notes=(*notes, *idle_settings(config, given)))


def _listed(problems: Sequence[str]) -> str:
    unique = list(dict.fromkeys(problems))
    return unique[0] if len(unique) == 1 else f"{len(unique)} problems:\n" + "\n".join(f"  - {text}" for text in unique)


# ---------------------------------------------------------------------------------------------- mode


def _claims(command: str, flags: Source, variable: str | None, problems: list[str]) -> list[Claim]:
    claims = []
    if command == "launch render":
        claims.append(Claim(Mode.RENDER_ONLY, "scaleout launch render"))
    if _says_tokens_only(flags, problems):
        claims.append(Claim(Mode.TOKENS_ONLY, "--tokens-only"))
    elif command == "serve":
        claims.append(Claim(Mode.STANDARD, "scaleout serve"))
    if variable:
        claims += _claims_by_name(variable, f"SCALEOUT_MODE={variable}", problems)
    return claims


def _claims_of_file(path: Path, file: Source, mode: Any, problems: list[str]) -> list[Claim]:
    claims = [] if mode is None else _claims_by_name(str(mode), f"mode = {mode} in {path}", problems)
    if _says_tokens_only(file, problems):
        claims.append(Claim(Mode.TOKENS_ONLY, f"tokens-only in {path}"))
    return claims


def _says_tokens_only(source: Source, problems: list[str]) -> bool:
    item = source.settings.pop("tokens-only", None)
    return item is not None and _read_all({"tokens-only": item}, problems).get("tokens-only") is True


def _claims_by_name(name: str, how: str, problems: list[str]) -> list[Claim]:
    if name in list(Mode):
        return [Claim(Mode(name), how)]
    problems.append(f"{how}: unknown mode; it must be one of {', '.join(Mode)}")
    return []


def _agreed(claims: Sequence[Claim], problems: list[str]) -> Mode:
    if not claims:
        if not any("unknown mode" in problem for problem in problems):
            problems.append(f"no mode chosen: use {STARTS}")
        return Mode.STANDARD
    first = claims[0]
    for other in claims[1:]:
        if other.mode is not first.mode:
            problems.append(f"{other.how} means {other.mode}, which conflicts with {first.how} ({first.mode})")
    return first.mode


def _file_path(chosen: Given, claims: Sequence[Claim]) -> Path:
    path = Path(str(chosen.raw)).expanduser()
    return path / f"{claims[0].mode}.toml" if claims and path.is_dir() else path


# ---------------------------------------------------------------------------------------------- the scale-out switch


def _without_bad_switch(environ: Mapping[str, str], problems: list[str]) -> Mapping[str, str]:
    if environ.get(SWITCH, "0") in ("0", "1"):
        return environ
    problems.append(f"{SWITCH}={environ[SWITCH]}: the value must be exactly 0 or 1")
    return {name: text for name, text in environ.items() if name != SWITCH}


def _scale_out_conflicts(
    claims: Sequence[Claim], given: Mapping[str, Given], config: ModeConfig, environ: Mapping[str, str]
) -> Iterable[str]:
    dedicated = next((claim for claim in claims if claim.mode is not Mode.STANDARD), None)
    if dedicated is None:
        return
    if environ.get(SWITCH) == "0":
        yield f"{SWITCH}=0 conflicts with {dedicated.how}; unset it or set it to 1"
    item = given.get("enable-scale-out")
    if item is not None and item.where != SWITCH and not config.scale_out:
        yield f"{item.where} switches scale-out off, which conflicts with {dedicated.how}; leave it out"


# ---------------------------------------------------------------------------------------------- values


def _take_model(words: Sequence[str], flags: Source, problems: list[str]) -> None:
    if not words:
        return
    model, *more = words
    named = flags.settings.get("model")
    if named is not None and named.raw != model:
        problems.append(f"two models: {model} and --model {named.raw}")
    flags.settings["model"] = Given(model, "MODEL")
    if more:
        problems.append(f"unexpected {' '.join(more)} after the model {model}")


def _read_all(given: Mapping[str, Given], problems: list[str]) -> dict[str, Any]:
    values = {}
    for name, item in given.items():
        option = FLAGS[name].option
        try:
            values[name] = option.kind.read(item.raw)
        except ValueError as exc:
            shown = "" if option.secret else f"={item.raw}"
            problems.append(f"{item.where}{shown}: {exc}")
    return values


def _build(mode: Mode, claims: Sequence[Claim], values: Mapping[str, Any]) -> ModeConfig:
    parts: dict[str, dict[str, Any]] = {"": {}, "engine": {}, "limits": {}, "web": {}, "media": {}}
    for name, value in values.items():
        parts[FLAGS[name].owner][FLAGS[name].field] = value
    return ModeConfig(
        mode=mode,
        mode_source=claims[0].how if claims else "the default",
        engine=EngineOptions(**parts["engine"]),
        limits=Limits(**parts["limits"]),
        web=WebOptions(**parts["web"]),
        media=MediaOptions(**parts["media"]),
        **parts[""],
    )
