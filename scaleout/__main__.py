"""Entry of the command `scaleout`. Answers --version before anything else is imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Exit code: 0 done, 1 failed, 2 not started because of what was asked."""
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):
        from scaleout import __version__

        print(f"scaleout {__version__}")
        return 0
    from scaleout.cli import run_command

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
