"""Repairs a checkpoint that Spark began and cannot use. No pyspark is needed here."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("offsets", "commits", "sources", "state")


def mend_checkpoint(checkpoint: str | os.PathLike[str]) -> bool:
    """Clear a local checkpoint whose query died before Spark had logged its first batch.

    Spark refuses such a folder for ever (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). Nothing is lost: the messages
    of the first batch are sealed on the server, and the query reads them again. A checkpoint with a logged batch stays
    as it is. Call this before the query starts, never while it runs. An interrupted call may be repeated.

    Args:
        checkpoint: The folder. It need not exist.

    Returns:
        Whether the checkpoint had to be cleared.

    Raises:
        OSError: A file cannot be removed.
    """
    folder = Path(checkpoint)
    with contextlib.suppress(FileNotFoundError):
        if any(path.name.isdigit() for path in (folder / "offsets").iterdir()):
            return False
    found = [folder / name for name in _FOLDERS if (folder / name).is_dir()]
    repaired = any(any(path.iterdir()) for path in found)
    for path in found:
        shutil.rmtree(path)
    return repaired
