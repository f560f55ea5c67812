"""The help text, made of the same table that reads the flags."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from attrs import Factory

from scaleout.config.flags import CONFIG, FLAGS, TOKENS_ONLY, Flag
from scaleout.config.peer_flags import PEER_FLAGS

GROUPS = {
    "start": "how to start",
    "model": "which model, under which names",
    "server": "listening, keys, streams",
    "web": "TLS, browsers, pages about the API",
    "render": "requests → token ids",
    "media": "pictures, sounds and films in requests",
    "derender": "token ids → answers",
    "engine": "token ids → token ids",
    "limits": "bounds, checked before any work; each says why it is what it is",
    "logging": "what is logged",
    "peer": "flags of vLLM that are no settings here, and what becomes of them",
}
"""Group → what it is about, in the order of the help."""

USAGE = {
    "": "usage: scaleout launch render MODEL [flags]   render and derender, no GPU\n"
    "       scaleout serve MODEL [flags]           the ordinary server\n"
    "       scaleout serve MODEL --tokens-only     token ids in, token ids out\n"
    "       scaleout demo [--serve]                all three stages with a small model\n"
    "       scaleout [MODEL] [flags]               mode from SCALEOUT_MODE or the config file\n"
    "       scaleout --version",
    "launch render": "usage: scaleout launch render MODEL [flags]",
    "serve": "usage: scaleout serve MODEL [--tokens-only] [flags]",
}
RULES = (
    "A setting comes from its flag, else from SCALEOUT_<NAME>, else from the VLLM_ variable of the same meaning, "
    "else from --config, else from its default. Switches have a --no- form. Numbers may be written 4k (4000), 4K (4096), 64MiB."
)
_INDENT = 30


def help_text(command: str, group: str | None = None) -> str:
    """Of one group, of all (`all`), or (None) of all but what is only about vLLM's flags. ValueError: no such group."""
    width = min(shutil.get_terminal_size((110, 24)).columns, 130)
    if group is not None and group != "all" and group not in GROUPS:
        raise ValueError(f"--help={group}: there is no such group; the groups are all, {', '.join(GROUPS)}")
    shown = [group] if group in GROUPS else [name for name in GROUPS if group == "all" or name != "peer"]
    lines = [USAGE[command], ""]
    if group not in GROUPS:
        lines += [
            *textwrap.wrap(RULES, width),
            *textwrap.wrap(f"--help=GROUP shows one group: {', '.join(GROUPS)}; --help=all shows all.", width),
        ]
    for name in shown:
        if name is not None:
            lines += ["", f"{name}: {GROUPS[name]}"]
            lines += _peer_lines(width) if name == "peer" else _group_lines(command, name, width)
    return "\n".join(lines).strip() + "\n"


def _group_lines(command: str, group: str, width: int) -> Iterable[str]:
    for flag in FLAGS.values():
        if flag.option.group == group and not (flag is TOKENS_ONLY and command == "launch render"):
            yield from _entry(_left(flag), _right(flag), width)


def _left(flag: Flag) -> str:
    kind = flag.option.kind
    shown = f"--{flag.name} {kind.shown}{' ...' if kind.many else ''}".strip()
    return f"MODEL, {shown}" if flag.name == "model" else shown


def _right(flag: Flag) -> str:
    option = flag.option
    extra = [f"default {default}"] if (default := _default(flag)) else []
    extra += [f"same as {alias}" for alias in option.aliases]
    extra += [f"off by {option.opposite}"] if option.opposite else []
    names = [name for name in (None if flag is TOKENS_ONLY else flag.env, option.vllm_env) if name]
    extra += ["env " + ", ".join(names)] if names else []
    return f"{option.help} [{'; '.join(extra)}]" if extra else option.help


def _default(flag: Flag) -> str:
    default = flag.default
    if isinstance(default, Factory) or default in (None, "", (), {}) or flag in (CONFIG, TOKENS_ONLY):  # type: ignore[arg-type]
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _entry(left: str, right: str, width: int) -> Iterable[str]:
    body = textwrap.wrap(right, max(width - _INDENT, 30), break_on_hyphens=False)
    head = f"  {left}"
    if len(head) < _INDENT - 1:
        yield head.ljust(_INDENT) + body[0]
        body = body[1:]
    else:
        yield head
    for line in body:
        yield " " * _INDENT + line


def _peer_lines(width: int) -> Iterable[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for flag in PEER_FLAGS.values():
        reasons.setdefault((flag.fate, flag.reason), []).append(f"--{flag.name}")
    said = {
        "engine": "handed to the vllm engine; no effect where there is no engine; an error with another engine",
        "ignored": "accepted without effect",
        "refused": "refused",
    }
    for (fate, reason), names in reasons.items():
        yield from textwrap.wrap(f"{said[fate]} ({reason}):", width - 2, initial_indent="  ", subsequent_indent="  ")
        yield from textwrap.wrap(
            " ".join(names), width - 6, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False
        )
