"""Looks at messages in a directory, without changing them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from apressure.core.browsing import MOST_READ, Seen
from apressure.files.storage.messages.contents import handed_out
from apressure.files.storage.names import READY, FileName, id_of, parse, time_of
from apressure.files.storage.place import READ, opened


def look(directory: int, filenames: Iterable[str], most_bytes: int) -> tuple[int, list[Seen]]:
    """Look at the files of these messages, until some 1 MiB was read.

    Args:
        directory: The descriptor of the directory.
        filenames: Their names.
        most_bytes: How many bytes of each to read.

    Returns:
        How many it has looked at, and what it has seen of those that are there.
    """
    seen: list[Seen] = []
    looked = size = 0
    for filename in filenames:
        if size >= MOST_READ:
            break
        looked += 1
        if (name := parse(filename)) is not None:
            with contextlib.suppress(FileNotFoundError):
                seen.append(_seen(directory, filename, name, most_bytes))
                size += len(seen[-1].start or b"")
    return looked, seen


def _seen(directory: int, filename: str, name: FileName, most_bytes: int) -> Seen:
    since = time_of(name.key) / 1000 if name.state == READY else None
    told = Seen(None, 0, id_of(name.key).encode(), since=since, due=name.expires / 1000 or None)
    try:
        with opened(filename, READ, directory) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return told._replace(error="it is not a file")
            with os.fdopen(fd, "rb", closefd=False) as file:
                start = file.read(min(most_bytes, status.st_size))
    except FileNotFoundError:
        raise
    except OSError as error:
        return told._replace(error=f"it cannot be read: {error.strerror or error}")
    return told._replace(start=start, size=status.st_size, attempts=handed_out(status))
