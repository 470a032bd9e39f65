"""The servers behind `embedded://` and `embedded:///some/dir`: one for each process and directory."""

from __future__ import annotations

import atexit
import os
import threading

from apressure.embedded.server import EmbeddedServer

_shared: dict[str | None, EmbeddedServer] = {}
_guard = threading.Lock()


def shared(directory: str | os.PathLike[str] | None = None) -> EmbeddedServer:
    """Return the running embedded server of this process for a directory (None: without one).

    The first call starts it, later calls start it again (at the same address) if it has died, and it is stopped when
    the process ends. A forked child gets its own server.

    Raises:
        MissingExtraError: This machine has no server program.
        ServerUnavailableError: The server did not start, or another process's server uses the directory.
    """
    key = None if directory is None else os.path.realpath(directory)
    with _guard:
        server = _shared.get(key)
        if server is None:
            server = EmbeddedServer(directory=key)
        server.start()
        _shared[key] = server
        return server


@atexit.register
def _stop_all() -> None:
    # The watchdogs would stop them, too. This waits until the data is written.
    for server in _shared.values():
        server.stop()


def _after_fork_in_child() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it
    _guard = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
