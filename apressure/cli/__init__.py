"""The `apressure` command.

Typer and Rich belong to the extra `cli`. Only the modules of this package import them, and only when a command runs, so
the library needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `apressure` command and return its exit code.

    Args:
        arguments: The arguments of the command; by default those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            import rich  # noqa: F401  (checks that it is installed)
            import typer  # noqa: F401
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("rich", "typer"):
                raise
            sys.stderr.write(f"apressure: the command line needs {error.name}: pip install 'apressure[cli]'\n")
            return 8  # Exit.MISSING_EXTRA
        from apressure.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        # It came before the event loop has started: there is nothing to clean up.
        return 130
