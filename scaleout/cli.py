"""Words of the command line → what runs. Every mistake ends with one message and exit code 2, never with a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from scaleout.config import ModeConfig
from scaleout.config.help import help_text
from scaleout.errors import ConfigError

COMMANDS = ("launch render", "serve")


def run_command(argv: Sequence[str]) -> int:
    """Show help, run the demo, or serve until told to stop."""
    if argv[:1] == ["demo"]:
        from scaleout.demo import run_demo

        return run_demo(argv[1:])
    asked = next((word for word in argv if word in ("-h", "--help") or word.startswith("--help=")), None)
    if asked is not None:
        return _show_help(argv, asked)
    if not argv and "SCALEOUT_MODE" not in os.environ and "SCALEOUT_CONFIG" not in os.environ:
        sys.stderr.write(help_text("", "start"))
        return 2
    try:
        config = ModeConfig.load(argv, os.environ)
    except ConfigError as exc:
        return _refuse(str(exc))
    for note in config.notes:
        sys.stderr.write(f"scaleout: {note}\n")
    from scaleout.app import run

    try:
        return run(config)
    except ConfigError as exc:  # what only the model's files can tell
        return _refuse(str(exc))


def _show_help(argv: Sequence[str], asked: str) -> int:
    command = next((name for name in COMMANDS if list(argv[: len(name.split())]) == name.split()), "")
    try:
        print(help_text(command, asked.partition("=")[2] or None), end="")
    except ValueError as exc:
        return _refuse(str(exc))
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(f"scaleout: {message}\n")
    return 2
