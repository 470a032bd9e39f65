"""The pipeline's folder: what it is for, how far it is, and that one command at a time works there."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from apressure.cli.exits import UsageError
from apressure.exceptions import PressureError
from apressure.nycflights import ALL_FLIGHTS

BOUND: Final = 10_000
"""How many rows the queue takes, where nobody says."""
_FILE: Final = "pipeline.json"
_LOCK: Final = "pipeline.lock"
_NEW: Final = "pipeline.new"
_PATIENCE: Final = 2.0
"""Seconds for which a command that is about to end is waited for."""


class FolderInUseError(PressureError):
    """Another command works in the folder."""


@dataclasses.dataclass
class Run:
    """What `pipeline.json` says.

    Attributes:
        rows: How many flights.
        bound: How many of them the queue takes.
        queue: The queue's name, unlike any other on the server.
        created: The queue has been created: when it is missing, it was lost.
        runs: How many commands have worked on it.
        result: What the pipeline has done, when it has.
        deleted: The queue has been deleted.
    """

    rows: int
    bound: int
    queue: str
    created: bool = False
    runs: int = 0
    result: dict[str, Any] | None = None
    deleted: bool = False


class Folder:
    """The folder of one pipeline; made by `Folder.taken`.

    Attributes:
        path: Where it is.
        run: What is done there. `save` keeps it.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run

    @classmethod
    @contextlib.contextmanager
    def taken(cls, path: Path, rows: int | None, bound: int | None) -> Iterator[Self]:
        """Take a folder for as long as the block lasts; made where it does not exist. A kill lets it go.

        Args:
            path: Where it is.
            rows: How many flights; None for what the folder says, or all.
            bound: How many rows the queue takes; None for what the folder says, or `BOUND`.

        Raises:
            UsageError: It has something else in it, or a pipeline with other numbers.
            FolderInUseError: Another command works there.
            OSError: It cannot be written.
        """
        path = path.absolute()
        path.mkdir(parents=True, exist_ok=True)
        if not (path / _LOCK).exists():  # nothing is written where something else is
            _is_ours(path)
        with _locked(path):
            name = f"{{flights-{secrets.token_hex(4)}}}"  # in braces, for clusters
            run = _read(path) if _is_ours(path) else Run(rows or ALL_FLIGHTS, bound or BOUND, name)
            for name, wanted, there in (("--rows", rows, run.rows), ("--bound", bound, run.bound)):
                if wanted not in (None, there):
                    raise UsageError(
                        f"{path} has a pipeline of {name} {there}: go on with that, or name another folder with --into"
                    )
            folder = cls(path, run)
            folder.save()
            yield folder

    def save(self) -> None:
        """Write down how far it is. Killed, what was written before is there."""
        new = self.path / _NEW
        new.write_text(json.dumps(dataclasses.asdict(self.run), indent=1) + "\n")
        new.replace(self.path / _FILE)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FolderInUseError(f"another command works in {path}") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def _is_ours(path: Path) -> bool:
    """Whether a pipeline has begun there; False for a folder with nothing in it yet."""
    names = {found.name for found in path.iterdir()}
    if _FILE not in names and names - {_LOCK, _NEW}:
        raise UsageError(f"{path} has something else in it than a pipeline: name another folder with --into")
    return _FILE in names


def _read(path: Path) -> Run:
    try:
        return Run(**json.loads((path / _FILE).read_text()))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path / _FILE} is not what a pipeline writes ({error}): name another folder") from None
