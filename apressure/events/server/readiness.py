"""Tells systemd (or whatever speaks its protocol) about the state of the server."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*states: str) -> None:
    """Send states such as `READY=1` to the service manager, if there is one (`NOTIFY_SOCKET`). Errors are discarded."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.sendto("\n".join(states).encode(), address)
