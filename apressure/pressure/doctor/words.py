"""How the doctor writes names, values, durations and commands."""

from __future__ import annotations

import shlex


def text_of(value: bytes) -> str:
    """Return a name as text that can be encoded to the same bytes again."""
    return value.decode(errors="surrogateescape")


def shown(value: bytes) -> str:
    """Return the beginning of a value, readable."""
    return repr(value[:100].decode(errors="backslashreplace")) + (" …" if len(value) > 100 else "")


def quoted(*arguments: bytes) -> str:
    """Return arguments for a shell."""
    return " ".join(shlex.quote(text_of(argument)) for argument in arguments)


def duration(milliseconds: int) -> str:
    """Return a duration of seconds, minutes or hours; 0 for a negative one."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def how_to_find(holder: str | None) -> str:
    """Return how to find out whether the holder of a role is alive."""
    name = "" if holder is None else " The name of an apressure client is HOST:PID:THREAD."
    return (
        f"Find out whether that client is alive.{name} `redis-cli CLIENT LIST` shows the server's connections; one "
        "that waits has cmd=brpop or similar."
    )


def how_to_give_back(queue: str, holder: str | None) -> str:
    """Return the command that gives back the role of a dead holder."""
    return f"apressure doctor {shlex.quote(queue)} --repair --holder {shlex.quote(holder or '')}"
