"""Virtual environments for other libraries at the other end: each is made once, and reused by the next runs.

Delete the directory to get newer versions.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers import CannotRun

ROOT = Path(__file__).parents[1]


def environment(place: Path, requirements: Sequence[str]) -> Path:
    """Return the Python of the virtual environment in `place`, which has these requirements.

    Raises:
        CannotRun: It cannot be made here; the message has pip's last line.
    """
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not installed(place, requirements):
        run(sys.executable, "-m", "venv", "--clear", str(place))
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        mark(place, requirements)
    return python


def shared_environment(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment that all processes of a test run share, inside the environment of the tests.

    Raises:
        CannotRun: It cannot be made here.
    """
    place = Path(sys.prefix) / "other-libraries" / name
    try:
        place.parent.mkdir(exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first one installs, the others wait
            return environment(place, requirements)
    except OSError as failure:
        raise CannotRun(f"{name} (not installed: {failure})") from None
    except CannotRun as failure:
        raise CannotRun(f"{name} ({failure})") from None


def installed(place: Path, requirements: Sequence[str]) -> bool:
    """Return whether an earlier run has installed all of it."""
    note = place / "installed.txt"
    return note.exists() and note.read_text() == "\n".join(requirements)


def mark(place: Path, requirements: Sequence[str]) -> None:
    """Record the installed requirements, after the installation succeeded."""
    (place / "installed.txt").write_text("\n".join(requirements))


def run(*command: str) -> None:
    """Run a step of an installation."""
    try:
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as failure:
        raise CannotRun(f"not installed: {last_line(failure)}") from None


def last_line(failure: Exception) -> str:
    """Return the last line of a failed program's output."""
    said = getattr(failure, "stderr", None) or ""
    lines = (said.decode(errors="replace") if isinstance(said, bytes) else said).strip().splitlines()
    return lines[-1] if lines else str(failure)
