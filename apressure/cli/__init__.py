"""The `apressure` command.

Typer and Rich belong to the extra `cli` and are imported by the modules of this package alone, and only when a
command runs: whoever installs apressure as a library needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `apressure` command and return its exit code.

    Args:
        arguments: The words after the command's name; those of this process by default.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            import rich  # noqa: F401  (only to see whether it is there)
            import typer  # noqa: F401
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("rich", "typer"):
                raise
            sys.stderr.write(f"apressure: the command line needs {error.name}: pip install 'apressure[cli]'\n")
            return 8  # Exit.MISSING_EXTRA
        from apressure.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        # Before the event loop is there to be told: nothing has begun, nothing needs cleaning up.
        return 130
