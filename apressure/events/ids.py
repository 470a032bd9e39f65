"""The ids of events: random ones, and those that a program gives."""

from __future__ import annotations

from typing import Final

from apressure import validation

MAX_ID: Final = 1024
"""The longest id that `put(id=…)` takes, in bytes."""


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
