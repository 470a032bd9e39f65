"""Turns a .lua file into commands: EVALSHA, and EVAL if the server does not know the script yet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from apressure.connection.wire.channel import Channel, ConnectionLost
from apressure.connection.wire.command import Head

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The last argument is a tag that comes back with the answer, so that a reply to another request is recognized. A number
# comes back in one string with the tag, which is faster for the server than a list.
_HEAD = "local TAG, answer = table.remove(ARGV)\n"
_TAIL = """\
if answer == nil then answer = step() end
if type(answer) == 'number' then return TAG .. ' ' .. answer end
return {TAG, answer}
"""

# Not compiled here: that would take time at the import.
_COMMENT = r"--.*"
_FUNCTION = r"(?m)^local function (\w+)\(.*\n(?:.*\n)*?end\n"


class Script:
    """One script, behind the functions of its package's prelude that it uses.

    If `lua/usual/` has a script of the same name for the usual case, that one is tried first. A function costs a server
    nothing until it is called, so the usual case does not pay for the others.

    Args:
        package: The package whose folder `lua` holds the files.
        name: The file's name without `.lua`.
        prelude: The package whose prelude it uses; its own by default.
    """

    def __init__(self, package: str, name: str, prelude: str | None = None) -> None:
        from importlib import resources  # here, since `import apressure` reads no script

        folder = resources.files(package) / "lua"
        self.name = name
        shared = prelude_of(prelude or package)
        step = (folder / f"{name}.lua").read_text()
        usual = folder / "usual" / f"{name}.lua"
        parts = [_HEAD]
        if usual.is_file():
            parts.append(f"local function usual()\n{usual.read_text()}end\nanswer = usual()\n")
        parts.append(f"local function step()\n{used(shared, step)}{step}end\n{_TAIL}")
        self.source = "".join(parts).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def on(self, keys: Sequence[bytes]) -> Call:
        """Return the call of this script on those keys."""
        return Call(self, tuple(keys))


class Call:
    """A script and its KEYS: the constant part of its commands.

    Attributes:
        script: The script.
        keys: Its KEYS.
        short: Runs the script by its digest.
    """

    def __init__(self, script: Script, keys: tuple[bytes, ...]) -> None:
        self.script = script
        self.keys = keys
        self.short = Head(b"EVALSHA", script.sha, len(keys), *keys)

    @property
    def whole(self) -> Head:
        """Runs it with its source."""
        return Head(b"EVAL", self.script.source, len(self.keys), *self.keys)


def prelude_of(package: str) -> str:
    """Return what the scripts of a package share.

    That is what all rooms share, then `lua/prelude.lua`, or the files in `lua/prelude/` by their names.
    """
    from importlib import resources

    folder = resources.files(package) / "lua"
    one = folder / "prelude.lua"
    own = [one] if one.is_file() else _by_name(folder / "prelude")
    return "".join(part.read_text() for part in (*_by_name(resources.files("apressure.connection") / "lua"), *own))


def _by_name(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda part: part.name)


def used(prelude: str, step: str) -> str:
    """Return the prelude without comments, and without the functions that a step does not use, directly or indirectly.

    A server creates each function whenever the script runs, which would cost more than most steps do.
    """
    functions = {match[1]: match[0] for match in re.finditer(_FUNCTION, prelude)}
    needed: set[str] = set()
    unread = [step]
    while unread:
        words = set(re.findall(r"\w+", re.sub(_COMMENT, "", unread.pop())))
        found = words & functions.keys() - needed
        needed |= found
        unread += (functions[name] for name in found)
    chosen = re.sub(_FUNCTION, lambda match: match[0] if match[1] in needed else "", prelude)
    return re.sub(r"(?m)^(?:--.*)?\n", "", chosen)


def answer_of(reply: Any, tag: bytes, channel: Channel) -> Any:
    """Return the script's answer in a reply. If the reply belongs to another request, end the connection."""
    if isinstance(reply, bytes):
        mine, _, number = reply.partition(b" ")
        if mine == tag:
            return int(number)
    elif isinstance(reply, Exception):
        return reply
    elif isinstance(reply, list) and reply and reply[0] == tag:
        return reply[1] if len(reply) > 1 else None
    return out_of_step(channel)


def out_of_step(channel: Channel) -> ConnectionLost:
    """End a connection whose replies belong to other requests, for example because one was delivered twice."""
    lost = ConnectionLost("a reply came that belongs to another request")
    channel.abort(str(lost))
    return lost
