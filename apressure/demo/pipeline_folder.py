"""The pipeline's folder: how far the pipeline is, and a lock, so that one command at a time works there."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from apressure.demo import ALL_FLIGHTS
from apressure.exceptions import PressureError

_BOUND: Final = 10_000
"""How many rows the queue takes by default."""
_FILE, _LOCK, _NEW = "pipeline.json", "pipeline.lock", "pipeline.new"
_PATIENCE: Final = 2.0
"""Seconds to wait for another command that is about to end."""


class UsageError(ValueError):
    """The command line does not fit the folder."""


class FolderInUseError(PressureError):
    """Another command works in the folder."""


@dataclasses.dataclass
class Folder:
    """The folder of one pipeline, made by `Folder.taken`. `pipeline.json` has all but its path."""

    path: Path
    rows: int
    bound: int
    queue: str
    """The queue's name, unlike any other on the server."""
    runs: int = 0
    """How many commands have worked on it. From the first one on, a missing queue was lost."""
    result: dict[str, Any] | None = None
    """The result, once the pipeline is done."""
    deleted: bool = False
    """The queue has been deleted."""

    @classmethod
    @contextlib.contextmanager
    def taken(cls, path: Path, rows: int | None, bound: int | None) -> Iterator[Self]:
        """Lock a folder while the block lasts, or until the process is killed. It is made if it does not exist.

        `rows` and `bound` are by default those of the pipeline there; of a new one, all flights and 10,000.

        Raises:
            UsageError: It has other files in it, or a pipeline with other numbers.
            FolderInUseError: Another command works there.
            OSError: It cannot be written.
        """
        path = path.absolute()
        path.mkdir(parents=True, exist_ok=True)
        names = {found.name for found in path.iterdir()}
        if names and not names & {_FILE, _LOCK}:
            raise UsageError(f"{path} has something else in it than a pipeline: name another folder with --into")
        with (path / _LOCK).open("wb") as lock:
            deadline = time.monotonic() + _PATIENCE
            while not _locked(lock.fileno()):
                if time.monotonic() > deadline:
                    raise FolderInUseError(f"another command works in {path}")
                time.sleep(0.05)
            folder = cls._read(path, rows, bound)
            for option, wanted, there in (("--rows", rows, folder.rows), ("--bound", bound, folder.bound)):
                if wanted not in (None, there):
                    what = f"{path} has a pipeline of {option} {there}"
                    raise UsageError(f"{what}: go on with that, or name another folder with --into")
            folder.save()
            yield folder

    @classmethod
    def _read(cls, path: Path, rows: int | None, bound: int | None) -> Self:
        try:
            return cls(path, **json.loads((path / _FILE).read_text()))
        except FileNotFoundError:
            # The name is in braces, for clusters.
            return cls(path, rows or ALL_FLIGHTS, bound or _BOUND, f"{{flights-{secrets.token_hex(4)}}}")
        except (TypeError, ValueError) as error:
            what = f"{path / _FILE} is not what a pipeline writes ({error})"
            raise UsageError(f"{what}: name another folder with --into") from None

    def save(self) -> None:
        """Write `pipeline.json`. Killed, it leaves the older file."""
        state = {name: value for name, value in vars(self).items() if name != "path"}
        (self.path / _NEW).write_text(json.dumps(state, indent=1) + "\n")
        (self.path / _NEW).replace(self.path / _FILE)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
