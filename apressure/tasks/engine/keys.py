"""The keys of a queue of tasks: those of Blueque, and ours beside them. No other module spells a key.

Blueque's keys share no hash tag, and a step learns the ids of tasks and the names of listeners from lists. So no
cluster can have them, and scripts make the keys of tasks and of reserved lists from the beginnings that are given here.
"""

from __future__ import annotations

from typing import Final

from apressure import validation
from apressure.connection.settings import MAX_NAME

_BLUEQUE: Final = (
    b"pending_tasks", b"scheduled_tasks", b"started_tasks", b"listeners", b"complete_tasks", b"failed_tasks", b"tasks",
)  # fmt: skip
_OURS: Final = (b"leases", b"nodes", b"bound", b"closed", b"control")
_BEHIND: Final = (b"expired", b"keyed", b"lines", b"ring")
"""Also ours, at the end of the KEYS of every script."""
_BESIDE: Final = (b"lines", b"room", b"schedules", b"history", b"dedup", b"workers")
"""Also ours; see `TaskKeys`."""

QUEUES: Final = b"blueque_queues"
"""The sorted set of the names of all queues, by how many nodes listen to each."""

SCHEDULED: Final = b"apressure:blueque:scheduled"
"""Ours: the channel that tells schedulers of a task that is due before all others of its queue."""

_TASK: Final = b"blueque_task_"


def task_key(task_id: bytes) -> bytes:
    """The hash of a task. The channel that tells of its changes has the same name."""
    return _TASK + task_id


def parked(member: bytes) -> bytes:
    """The task in a member of `lines`: behind its packed key, and the 13 digits of its number."""
    length, _, rest = member.partition(b":")
    return rest[int(length) + 13 :] if length.isdigit() else member


class TaskKeys:
    """The keys of one queue.

    Args:
        name: The queue's name.

    Attributes:
        name: The queue's name, encoded.
        blueque: The keys that Blueque has for the queue, in the order of `lua/prelude/01_keys.lua`.
        ours: The keys that apressure has beside them.
        pending: The list of the tasks that wait: pushed left, popped right.
        scheduled: The sorted set of the tasks that wait for their time, by that time.
        listeners: The set of the listeners.
        complete: The list of the tasks that completed, the latest leftmost.
        failed: The list of the tasks that failed, the latest leftmost.
        lines: Ours: the sorted set of the tasks that are parked in the lines of their keys; see `parked`.
        leases: Ours: the sorted set of the tasks that a node of ours has, by when its lease ends.
        channel: The channel that tells that there is something to do.
        room: Ours: the channel that tells that there is room.
        schedules: Ours: the hash of the records of the queue's schedules, by their names.
        history: Ours: the list of the records of its last day. It expires.
        dedup: Ours: the hash of what was put, by dedup ids.
        workers: Ours: the hash of the registrations of those that work on the queue. It expires.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty or too long.
    """

    def __init__(self, name: str) -> None:
        if not validation.text(name, "a queue's name"):
            raise ValueError("a queue's name must not be empty")
        try:
            encoded = name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a queue's name must be text that UTF-8 can encode: {error}") from None
        if len(encoded) > MAX_NAME:
            raise ValueError(f"a queue's name must be shorter than {MAX_NAME} bytes")
        self.name = encoded
        self.blueque = tuple(b"blueque_%b_%b" % (word, encoded) for word in _BLUEQUE)
        self.ours = tuple(b"apressure:blueque:%b:%b" % (word, encoded) for word in _OURS)
        self.pending, self.scheduled, _, self.listeners, self.complete, self.failed, _ = self.blueque
        self.leases = self.ours[0]
        self.channel = b"blueque_channel_" + encoded
        self.lines, self.room, self.schedules, self.history, self.dedup, self.workers = (
            b"apressure:blueque:%b:%b" % (word, encoded) for word in _BESIDE
        )

    def reserved(self, listener: bytes) -> bytes:
        """The list of the tasks that a listener has reserved."""
        return b"blueque_reserved_tasks_%b_%b" % (self.name, listener)

    def for_script(self, series: str) -> tuple[bytes, ...]:
        """The KEYS of every script, as `lua/prelude/01_keys.lua` names them."""
        operation = b"apressure:blueque:op:" + series.encode()
        return (
            QUEUES, *self.blueque, *self.ours, operation, _TASK, self.reserved(b""), self.channel, self.room, SCHEDULED,
            *(b"apressure:blueque:%b:%b" % (word, self.name) for word in _BEHIND),
        )  # fmt: skip
