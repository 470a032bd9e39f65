"""Who this client is, as other clients see it in the keys `:producer` and `:consumer`.

Specification, "Clients": host, process and thread, which help a human who looks for a deadlock. The random part
makes two clients of one thread differ.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading


def client_identity() -> str:
    """Return a fresh identity such as `"web-3:4711:140213:9f86d081"`."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}:{secrets.token_hex(4)}"
