"""Turns a .lua file into commands: EVALSHA, and EVAL if the server does not know the script yet. Numbers the steps."""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from apressure.connection.wire.channel import Channel, ConnectionLost
from apressure.connection.wire.command import Argument, Head

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The last argument is a tag that comes back with the answer, so that a reply to another request is recognized. A number
# comes back in one string with the tag, which is faster for the server than a list.
_HEAD = "local TAG, answer = table.remove(ARGV)\n"
_TAIL = """\
if type(answer) == 'number' then return TAG .. ' ' .. answer end
return {TAG, answer}
"""

_FOR_USUAL = ("00_pace.lua", "02_values.lua", "04_line.lua", "usual/prelude.lua")
"""What usual cases get of what all rooms share. (Each name in the other parts would cost them time.)"""

# Not compiled here: that would take time at the import.
_COMMENT = r"--.*"
_NO_CODE = r"(?m)^(?:--.*)?\n"
_FUNCTION = r"(?m)^local function (\w+)\(.*\n(?:.*\n)*?end\n"


class Script:
    """One script, behind the functions of its package's prelude that it uses.

    If `lua/usual/` has a script of the same name for the usual case, that one is tried first. A function costs a server
    nothing until it is called, so the usual case does not pay for the others.

    Args:
        package: The package whose folder `lua` holds the files.
        name: The file's name without `.lua`.
        prelude: The package whose prelude it uses; its own by default.
        before: Lua that runs first, instead of the usual case: a value in `answer` is the answer, and the
            script does not run.
        after: Lua that runs behind the script, and may change `answer`.
    """

    def __init__(self, package: str, name: str, prelude: str | None = None, before: str = "", after: str = "") -> None:
        folder = scripts_of(package)
        self.name = name
        shared = prelude_of(prelude or package)
        step = (folder / f"{name}.lua").read_text()
        usual = folder / "usual" / f"{name}.lua"
        parts = [_HEAD, before]
        if not before and usual.is_file():
            text = usual.read_text()
            everywhere = scripts_of("apressure.connection")
            preludes = [*(everywhere / part for part in _FOR_USUAL), folder / "usual" / "prelude.lua"]
            usually = "".join(prelude.read_text() for prelude in preludes if prelude.is_file())
            names, functions = used(usually, text)
            parts.append(f"local function usual()\n{names}{functions}{text}end\nanswer = usual()\n")
        # The names are not beside the functions but around them: when a server creates a function, it searches what is
        # beside it for each name that the function uses. (Lua lets a function use 60 names from around it.)
        names, functions = used(shared, step)
        parts.append(f"if answer == nil then\n{names}local function step()\n{functions}{step}end\n")
        parts.append(f"answer = step()\n{after}end\n{_TAIL}")
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


class Series:
    """A series of numbered steps, of which at most one is unanswered at a time.

    The server keeps the result of the latest step under a key of the series. So it answers a repeat with that result,
    and does not carry it out again.

    Args:
        script: Returns a script by its name.
        keys: Returns the KEYS of every script, given the ending of the series' key.
        name: The ending of the series' key; by default one that no other series has.

    Attributes:
        number: The number of the latest step.
    """

    def __init__(
        self, script: Callable[[str], Script], keys: Callable[[str], tuple[bytes, ...]], name: str = ""
    ) -> None:
        self._given = name
        self._script = script
        self._keys = keys
        self.number = 0
        self._calls: dict[str, Call] = {}

    @functools.cached_property
    def _name(self) -> str:
        return self._given or os.urandom(8).hex()  # at the first step, since a process may be forked until then

    @functools.cached_property
    def keys(self) -> tuple[bytes, ...]:
        """The KEYS."""
        return self._keys(self._name)

    def call(self, name: str, more: Callable[[], tuple[bytes, ...]] = tuple, variant: str = "") -> Call:
        """Return the call of a script with this series' keys, and `more` behind them: the same ones each time.

        `variant` names calls of the same script with other keys behind them.
        """
        known = variant or name
        if known not in self._calls:
            self._calls[known] = self._script(name).on((*self.keys, *more()))
        return self._calls[known]

    def next(self) -> bytes:
        """Return the number of the step that is about to be sent."""
        self.number += 1
        return b"%d" % self.number

    @property
    def token(self) -> bytes:
        """A token that no other step has, for claims that the latest step makes."""
        return f"{self._name}-{self.number}".encode()


class Request:
    """One step that is to be sent, perhaps more than once, and answered.

    Attributes:
        call: The script to run, with its KEYS.
        arguments: Its ARGV.
        on_reply: Called exactly once, with the reply or an exception.
        resend: The step may be sent again after its reply was lost.
        again: The index of the argument that becomes `b"1"` when the step is sent again.
        whole: Send the script's source, so that no other step overtakes this one while the server learns the script.
        changed: Returns whether an answer means that the step wrote something that `durability=` applies to; None
            for steps that it does not apply to.
        reply_lost: A reply was lost, so the step may have been executed.
        began: When it was first to be sent, by the event loop's clock.
        until: When it may no longer be sent again, by the event loop's clock; 0 before its first failure.
        refusals: How often the server gave a temporary refusal.
    """

    reply_lost = False
    began = 0.0
    until = 0.0
    refusals = 0

    def __init__(
        self, call: Call, arguments: list[Argument], on_reply: Callable[[Any], None], resend: bool,
        again: int | None = None, whole: bool = False, changed: Callable[[Any], bool] | None = None,
    ) -> None:  # fmt: skip
        self.call = call
        self.arguments = arguments
        self.on_reply = on_reply
        self.resend = resend
        self.again = again
        self.whole = whole
        self.changed = changed


next_tag: Final = map(b"%d".__mod__, itertools.count(1)).__next__
"""Return a tag for a request that is about to be sent, so that the reply to another one is recognized."""


def scripts_of(package: str) -> Traversable:
    """Return the folder with the scripts of a package."""
    from importlib import resources  # here, since `import apressure` reads no script

    return resources.files(package) / "lua"


def prelude_of(package: str) -> str:
    """Return what the scripts of a package share.

    That is what all rooms share, then `lua/prelude.lua`, or the files in `lua/prelude/` by their names.
    """
    by_name = operator.attrgetter("name")
    folder = scripts_of(package)
    one = folder / "prelude.lua"
    own = [one] if one.is_file() else sorted((folder / "prelude").iterdir(), key=by_name)
    shared = sorted((part for part in scripts_of("apressure.connection").iterdir() if part.is_file()), key=by_name)
    return "".join(part.read_text() for part in (*shared, *own))


def used(prelude: str, step: str) -> tuple[str, str]:
    """Return the names of a prelude, and those functions of it that a step uses, directly or indirectly; no comments.

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
    names, chosen = re.sub(_FUNCTION, "", prelude), "".join(functions[name] for name in functions if name in needed)
    return re.sub(_NO_CODE, "", names), re.sub(_NO_CODE, "", chosen)


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
