"""Command line, environment and file, each read into the same form: flag name → what was given and where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from scaleout.config.flags import ALIASES, FLAGS, OPPOSITES, Flag, find_flag, nearest
from scaleout.config.options import OBJECT
from scaleout.config.peer_flags import PEER_FLAGS, SHORT, PeerFlag


@frozen
class Given:
    """A value as it stood in its source. `where` names the source in messages."""

    raw: Any
    where: str


@define
class Source:
    """What one source gave. `problems` are complete sentences."""

    settings: dict[str, Given] = field(factory=dict)
    peer: dict[str, Given] = field(factory=dict)
    problems: list[str] = field(factory=list)

    def add(self, flag: Flag, raw: Any, where: str) -> None:
        if flag.option.kind.many and flag.name in self.settings:
            raw = [*self.settings[flag.name].raw, *raw]
        self.settings[flag.name] = Given(raw, where)


# ---------------------------------------------------------------------------------------------- command line


@define
class _Words:
    """The command line, read from left to right."""

    words: Sequence[str]
    at: int = 0

    def __iter__(self) -> Iterator[str]:
        while self.at < len(self.words):
            self.at += 1
            yield self.words[self.at - 1]

    def value(self) -> str | None:
        """The next word, unless it is a flag."""
        if self.at < len(self.words) and not self.words[self.at].startswith("--"):
            self.at += 1
            return self.words[self.at - 1]
        return None

    def values(self, attached: str | None, wanted: int | None) -> Any:
        """What belongs to a flag: text for one value, a list for several, None when too few follow."""
        if attached is not None:
            return attached if wanted == 1 else [attached]
        if wanted == 1:
            return self.value()
        found: list[str] = []
        while (word := self.value()) is not None:
            found.append(word)
        return found or None


def read_argv(words: Sequence[str]) -> tuple[Source, list[str]]:
    """Flags, and the words that belong to none. `--flag value`, `--flag=value`, `--no-switch`, `--json-flag.key value`."""
    source = Source()
    rest: list[str] = []
    reading = _Words(words)
    for word in reading:
        if word == "--":
            rest += reading.words[reading.at :]
            break
        spelled, equals, tail = word.partition("=")
        attached = tail if equals else None
        if spelled in SHORT:
            spelled = "--" + SHORT[spelled]
        if spelled.startswith("--"):
            _read_flag(source, spelled, attached, reading)
        elif word.startswith("-") and len(word) > 1:
            source.problems.append(f"unknown flag {word}; see --help")
        else:
            rest.append(word)
    return source, rest


def _read_flag(source: Source, spelled: str, attached: str | None, reading: _Words) -> None:
    head, dot, path = spelled[2:].partition(".")
    name = head.replace("_", "-")
    flag = find_flag(name)
    if flag is not None and dot and flag.option.kind is OBJECT:
        value = reading.values(attached, 1)
        if value is None:
            source.problems.append(f"{spelled} needs a value")
        else:
            _set_inside(source, flag, path, value)
    elif flag is not None and not dot and flag.option.kind.switch:
        source.add(flag, True if attached is None else attached, spelled)
    elif flag is not None and not dot:
        value = reading.values(attached, None if flag.option.kind.many else 1)
        if value is None:
            source.problems.append(f"{spelled} needs a value")
        else:
            source.add(flag, value, spelled)
    elif name in OPPOSITES and attached is None and not dot:
        source.add(OPPOSITES[name], False, spelled)
    elif (peer := find_peer_flag(name)) is not None and not dot:
        value = name == peer.name if peer.values == 0 else reading.values(attached, peer.values)
        source.peer[peer.name] = Given(value, spelled)
    else:
        source.problems.append(f"unknown flag {spelled}{nearest(name, _all_names(), '--')}")
        reading.value()


def _set_inside(source: Source, flag: Flag, path: str, text: str) -> None:
    given = source.settings.get(flag.name, Given({}, f"--{flag.name}"))
    try:
        whole = dict(OBJECT.read(given.raw))
    except ValueError:
        return  # what stands there already will be named as wrong
    inner = whole
    *parents, last = path.split(".")
    for key in parents:
        inner[key] = dict(inner[key]) if isinstance(inner.get(key), dict) else {}
        inner = inner[key]
    inner[last] = _json_or_text(text)
    source.settings[flag.name] = Given(whole, given.where)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def find_peer_flag(name: str) -> PeerFlag | None:
    """A flag of vLLM that is no setting here; `no-` in front is understood where it takes no value."""
    positive = name.removeprefix("no-")
    peer = PEER_FLAGS.get(name) or PEER_FLAGS.get(positive)
    return peer if peer is not None and (name == peer.name or peer.values == 0) else None


def _all_names() -> list[str]:
    return [*FLAGS, *ALIASES, *PEER_FLAGS]


# ---------------------------------------------------------------------------------------------- environment

_NOT_OURS = re.compile(
    r"SCALEOUT_TEST_\w+|SCALEOUT_PEER"  # tests, their fixtures, and the benchmark's reference server
    # What Kubernetes puts into every pod for a service whose name starts with "scaleout".
    r"|SCALEOUT_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)|SCALEOUT_(\w+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_LINK = re.compile(r"(tcp|udp|sctp)://")
STARTING = ("SCALEOUT_MODE",)
"""Variables that choose how to start, and are no settings."""


def read_environ(environ: Mapping[str, str]) -> Source:
    """SCALEOUT_* and, below them, the VLLM_* variables of the same meaning. Empty means unset; several values are split at spaces."""
    source = Source()
    for flag in FLAGS.values():
        text = environ.get(flag.option.vllm_env or "", "")
        if text:
            source.settings[flag.name] = Given([text] if flag.option.kind.many else text, str(flag.option.vllm_env))
    known = {flag.env: flag for flag in FLAGS.values() if flag.name != "tokens-only"}
    for name, text in environ.items():
        if (
            not name.startswith("SCALEOUT_")
            or _NOT_OURS.fullmatch(name)
            or (name.endswith("_PORT") and _LINK.match(text))
        ):
            continue
        if name in known and text:
            known_flag = known[name]
            source.settings[known_flag.name] = Given(text.split() if known_flag.option.kind.many else text, name)
        elif name not in known and name not in STARTING:
            source.problems.append(f"unknown variable {name}{nearest(name, [*known, *STARTING])}")
    return source


# ---------------------------------------------------------------------------------------------- file


def read_file(path: Path) -> tuple[Source, Any]:
    """Settings of a YAML, TOML or JSON file, and its `mode` if it names one."""
    source, mode = Source(), None
    try:
        content = _parse_file(path)
    except (OSError, ValueError) as exc:
        source.problems.append(f"--config {path}: {exc.strerror if isinstance(exc, OSError) else exc}")
        return source, None
    for key, raw in content.items():
        name = str(key).replace("_", "-")
        where = f"{key} in {path}"
        flag = find_flag(name)
        if name == "mode":
            mode = raw
        elif flag is not None and name != "config":
            source.settings[flag.name] = Given(raw, where)
        elif name in OPPOSITES:
            source.settings[OPPOSITES[name].name] = Given(not raw, where)
        elif (peer := find_peer_flag(name)) is not None:
            source.peer[peer.name] = Given(raw if name == peer.name else not raw, where)
        else:
            source.problems.append(f"unknown key {where}{nearest(name, ['mode', *_all_names()])}")
    return source, mode


def _parse_file(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    if path.suffix == ".json":
        content = json.loads(text)
    elif path.suffix in (".yaml", ".yml"):
        import yaml

        try:
            content = yaml.safe_load(text) or {}
        except yaml.YAMLError as exc:
            raise ValueError(" ".join(str(exc).split())) from None
    else:
        raise ValueError("the name must end in .toml, .yaml, .yml or .json")
    if not isinstance(content, dict):
        raise ValueError("a mapping of flag names to values is needed")
    return content
