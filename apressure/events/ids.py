"""The ids of events: random ones, and those that a program gives."""

from __future__ import annotations

import os
from typing import Final

from apressure import validation

MAX_ID: Final = 1024
"""The longest id that `put(id=…)` takes, in bytes."""


def new_id() -> bytes:
    """Return a random id, a UUID of version 4."""
    raw = os.urandom(16).hex()
    variant = "89ab"[int(raw[16], 16) & 3]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}".encode()


def checked(event_id: str) -> bytes:
    """Return an id that a program gives, as bytes.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, too long, or no text that UTF-8 can encode.
    """
    validation.text(event_id, "id")
    try:
        encoded = event_id.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"an id must be text that UTF-8 can encode: {error}") from None
    if not 1 <= len(encoded) <= MAX_ID:
        raise ValueError(f"an id must have between 1 and {MAX_ID} bytes, not {len(encoded)}")
    return encoded
