"""A .lua file becomes a step that can be sent: by EVALSHA, and by EVAL where the server does not know it yet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from apressure.connection.channel import ConnectionLost
from apressure.connection.server import AnyChannel

# The last argument comes back with the answer, which is how a reply that belongs to another request is told.
_HEAD = "local TAG = table.remove(ARGV)\n"
_TAIL = "return {TAG, step()}\n"


class Script:
    """One script with its package's prelude in front.

    Args:
        package: The package whose folder `lua` holds the files.
        name: The file's name without `.lua`.
    """

    def __init__(self, package: str, name: str) -> None:
        from importlib import resources  # here, since `import apressure` reads no script

        folder = resources.files(package) / "lua"
        self.name = name
        prelude, step = ((folder / f"{one}.lua").read_text() for one in ("prelude", name))
        self.source = f"{_HEAD}{prelude}local function step()\n{step}end\n{_TAIL}".encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def command(
        self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int], tag: bytes, whole: bool = False
    ) -> list[bytes | str | int]:
        """Return the command that runs the script: by its digest, or `whole` with its source.

        Its answer is a list: the tag, and what the script returned.
        """
        head: list[bytes | str | int] = [b"EVAL", self.source] if whole else [b"EVALSHA", self.sha]
        return [*head, len(keys), *keys, *arguments, tag]


def answer_of(reply: Any, tag: bytes, channel: AnyChannel) -> Any:
    """The script's answer in a reply; where that is another request's, the connection ends."""
    if isinstance(reply, Exception):
        return reply
    if isinstance(reply, list) and reply and reply[0] == tag:
        return reply[1] if len(reply) > 1 else None
    return out_of_step(channel)


def out_of_step(channel: AnyChannel) -> ConnectionLost:
    """A reply came that belongs to another request, as do all that follow: a line that delivers one twice, say."""
    lost = ConnectionLost("a reply came that belongs to another request")
    channel.abort(str(lost))
    return lost
