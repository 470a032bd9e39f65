"""Repairs a checkpoint that Spark began and cannot use. No pyspark is needed here."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

QUIET: Final = 5.0
"""Seconds after which what a query has left is that of one that died."""
_FOLDERS: Final = ("offsets", "commits", "sources", "state")
_FILES_LOG: Final = "_spark_metadata"
"""Where Spark's file sink logs the files of each batch: `7`, or `9.compact` with those of all batches up to 9."""


def mend_checkpoint(checkpoint: str | os.PathLike[str], files: str | os.PathLike[str] | None = None) -> bool:
    """Repair a local checkpoint whose query died at a moment from which Spark cannot go on rightly by itself.

    There are two such moments:

    * Before Spark had logged its first batch. Spark refuses such a folder for ever
      (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). The folder is cleared, if it is a checkpoint: it has Spark's file
      `metadata`. Nothing is lost: the messages of the first
      batch are sealed on the server, and the query reads them again.
    * Between the log of the file sink and the commit of the batch. Spark skips that batch, and so its watermark does
      not move: the last windows would never be written. With `files`, and if the query has state, the entry in the
      sink's log is removed, and Spark runs the batch again. Until then Spark's readers do not see the rows of that
      batch. The files of its first run stay; `apressure.spark.sweep` removes them.

    Otherwise everything stays as it is. In the sessions of `session` and `register`, this is done when a query starts.
    Otherwise call it before the query starts, never while it runs. An interrupted call may be repeated.

    Args:
        checkpoint: The folder. It need not exist.
        files: The folder where the query's file sink writes. It need not exist.

    Returns:
        Whether something had to be repaired.

    Raises:
        OSError: A file cannot be removed.
    """
    damage = _damage(Path(checkpoint), None if files is None else Path(files))
    for path in damage:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return bool(damage)


def mend_when_quiet(checkpoint: Path, files: Path | None, quiet: float = QUIET) -> bool:
    """Mend the checkpoint of a query that starts, if nothing has changed for `quiet` seconds in what would be removed.

    The query may still run in another process, in the middle of a batch, although Spark allows one at a time only. Its
    batch goes on meanwhile, and then there is nothing to mend.
    """
    while (damage := _damage(checkpoint, files)) and (left := quiet - _age(damage)) > 0:
        time.sleep(min(left, 0.2))
    return mend_checkpoint(checkpoint, files)


def _damage(folder: Path, files: Path | None) -> list[Path]:
    """What has to be removed, in this order."""
    if logged := _numbers(folder / "offsets"):
        return [] if files is None else _unfinished_files(folder, files / _FILES_LOG, max(logged))
    if not (folder / "metadata").is_file():  # Spark writes it first: this is another folder, or there is none
        return []
    # The folders stay: a query that has just started has made them, and does not make them again.
    return [path for name in _FOLDERS if (folder / name).is_dir() for path in (folder / name).iterdir()]


def _age(paths: Iterable[Path]) -> float:
    """The seconds since any of these has changed."""
    latest = 0.0
    for path in itertools.chain.from_iterable((path, *path.rglob("*")) for path in paths):
        with contextlib.suppress(FileNotFoundError):
            latest = max(latest, path.stat().st_mtime)
    return max(0.0, time.time() - latest)


def _numbers(log: Path) -> dict[int, Path]:
    """The entries of a log of Spark's by the number of the batch. Temporary files and checksums begin with a dot."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return {int(path.stem): path for path in log.iterdir() if path.name.removesuffix(".compact").isdigit()}
    return {}


def _unfinished_files(checkpoint: Path, log: Path, batch: int) -> list[Path]:
    """The last entry of a file sink's log, if it is that of the latest batch, which has no commit."""
    entries = _numbers(log)
    committed = batch in _numbers(checkpoint / "commits")
    if committed or not (checkpoint / "state").is_dir() or max(entries, default=None) != batch:
        return []
    checksum = log / f".{entries[batch].name}.crc"
    return [checksum, entries[batch]]  # the checksum first, because without its file it would fit no other one
