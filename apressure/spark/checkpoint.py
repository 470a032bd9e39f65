"""Repairs a checkpoint that Spark began and cannot use. No pyspark is needed here."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

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
      batch. The files of its first run stay; `apressure.spark.pipeline.sweep` removes them.

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
    folder = Path(checkpoint)
    if logged := _numbers(folder / "offsets"):
        return files is not None and _forget_files(folder, Path(files) / _FILES_LOG, max(logged))
    if not (folder / "metadata").is_file():  # Spark writes it first: this is another folder, or there is none
        return False
    left = [path for name in _FOLDERS if (folder / name).is_dir() for path in (folder / name).iterdir()]
    for path in left:  # the folders stay: a query that has just started has made them, and does not make them again
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return bool(left)


def _numbers(log: Path) -> dict[int, Path]:
    """The entries of a log of Spark's by the number of the batch. Temporary files and checksums begin with a dot."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return {int(path.stem): path for path in log.iterdir() if path.name.removesuffix(".compact").isdigit()}
    return {}


def _forget_files(checkpoint: Path, log: Path, batch: int) -> bool:
    """Remove the last entry of a file sink's log, if it is that of the latest batch, which has no commit."""
    entries = _numbers(log)
    committed = batch in _numbers(checkpoint / "commits")
    if committed or not (checkpoint / "state").is_dir() or max(entries, default=None) != batch:
        return False
    entry = entries[batch]
    (log / f".{entry.name}.crc").unlink(missing_ok=True)  # first, because without its file it would fit no other one
    entry.unlink()
    return True
