"""Puts that are done once: `put(dedup_id=)`. A hash of ours has what was put, from dedup ids to records.

A kind's script that puts gets the messages that are no repeats, as a part of a step that writes the records, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from apressure.connection.wire.script import Call, Script, Series, scripts_of

if TYPE_CHECKING:
    from apressure.connection.sender import Sender


class PutScript(NamedTuple):
    """The script with which a kind puts.

    Attributes:
        name: Its name.
        record: Which of its KEYS is the record of the step.
        sequence: Which of its arguments is the number of the step; behind it, the one that marks a repeat.
        head: How many arguments of it come before the messages.
        width: How many each message has.
        put: Lua for a letter for each message that its `answer` tells of, or false if it tells of none.
        unfinished: Lua that returns whether the message with that `id` is still there; empty where messages have no
            ids. It raises no error because of that message.
        waiting: Lua that returns whether such a message waits or is delayed. The script puts another one in its place,
            if that has its id, and `=` before its last argument.
    """

    name: str
    record: int
    sequence: int
    head: int
    width: int
    put: str
    unfinished: str = ""
    waiting: str = ""


_BEFORE: Final = """\
local RECORD, SEQUENCE, HEAD, WIDTH, IDS, RECORD_MS = {record}, {sequence}, {head}, {width}, {ids}, 300000
local function is_unfinished(id) {unfinished} end
local function is_waiting(id) {waiting} end
"""


@functools.cache
def _script(room: str, how: PutScript, name: str) -> Script:
    before, after = (
        (scripts_of("apressure.connection.dedup") / f"{part}.lua").read_text() for part in ("before", "after")
    )
    ids = "true" if how.unfinished else "false"
    return Script(
        room,
        name,
        before=_BEFORE.format(**how._asdict(), ids=ids) + before,
        after=f"local put = {how.put}\n{after}",
    )


class DedupSeries(Series):
    """A series of steps of that script, which put each message once.

    Args:
        sender: Sends the queue's steps.
        how: The script.
    """

    def __init__(self, sender: Sender, how: PutScript) -> None:
        super().__init__(functools.partial(_script, sender.room, how), sender.keys.for_script)
        self._dedup = (sender.keys.dedup,)

    def call(self, name: str, more: Callable[[], tuple[bytes, ...]] = tuple, variant: str = "") -> Call:
        return super().call(name, lambda: (*more(), *self._dedup), variant)
