"""A task, as the server knew it at one moment."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from apressure import validation
from apressure.exceptions import TaskDoesNotExistError, TaskFailedError, TaskUnfinishedError
from apressure.tasks.codec import decoded
from apressure.tasks.engine.answers import Claim, raw
from apressure.tasks.engine.keys import task_key
from apressure.tasks.engine.steps import load
from apressure.tasks.engine.waits import POLL, channels_of

if TYPE_CHECKING:
    from apressure.connection.client import Client

FINISHED: Final = frozenset({"complete", "failed"})
"""The statuses of tasks that have ended."""


class Task:
    """A snapshot of a task; it does not change. `refresh` returns a newer one.

    Any program may have written the task's hash: what is missing or unreadable is None, and a status that Blueque does
    not know is shown as it is.

    Attributes:
        id: The task's id.
        fields: All fields of its hash, as text, those of other programs included.
    """

    __slots__ = ("_client", "fields", "id")

    def __init__(self, client: Client, task_id: str, fields: Mapping[str, str]) -> None:
        self.id = task_id
        self.fields = MappingProxyType(fields)
        self._client = client

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.queue!r}: {self.status}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and (self.id, self.fields) == (other.id, other.fields)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def status(self) -> str | None:
        """`"scheduled"`, `"pending"`, `"reserved"`, `"started"`, `"complete"` or `"failed"`."""
        return self.fields.get("status")

    @property
    def finished(self) -> bool:
        """Whether it is complete or failed."""
        return self.status in FINISHED

    @property
    def queue(self) -> str | None:
        """The name of its queue."""
        return self.fields.get("queue")

    @property
    def parameters(self) -> Any:
        """What it was enqueued with: a value of JSON, or a plain string."""
        return self._decoded("parameters")

    @property
    def result(self) -> Any:
        """What it completed with: a value of JSON, or a plain string; None before."""
        return self._decoded("result")

    @property
    def error(self) -> str | None:
        """Why it failed; None unless it has."""
        return self.fields.get("error") if self.status == "failed" else None

    @property
    def node(self) -> str | None:
        """The listener that has it, or had it last: `[hostname]_[pid]`."""
        return self.fields.get("node")

    @property
    def pid(self) -> int | None:
        """The process that runs it, or ran it last."""
        return whole(self.fields, "pid")

    @property
    def created(self) -> float | None:
        """When it was enqueued or scheduled, in seconds since 1970."""
        return number(self.fields, "created")

    @property
    def updated(self) -> float | None:
        """When it changed last, in seconds since 1970."""
        return number(self.fields, "updated")

    @property
    def eta(self) -> float | None:
        """When it is, or was, due, in seconds since 1970; None if it was not scheduled."""
        return number(self.fields, "eta")

    @property
    def attempts(self) -> int:
        """How often nodes of apressure have reserved it. The released blueque does not count its own reservations."""
        return whole(self.fields, "attempts") or 0

    @property
    def progress(self) -> float | None:
        """How far it has come, from 0 to 1; None if it does not tell."""
        return number(self.fields, "progress")

    @property
    def progress_message(self) -> str | None:
        """What it said last about its progress."""
        return self.fields.get("progress_message")

    @property
    def process_started(self) -> float | None:
        """When the process that runs it began, in seconds since 1970; None if that is unknown."""
        return number(self.fields, "process_started")

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody has asked to cancel it while it ran."""
        return "cancel_requested" in self.fields

    @property
    def claim(self) -> Claim:
        """What names its latest reservation."""
        return Claim(raw(self.id), raw(self.fields.get("token", "")), raw(self.fields.get("node", "")))

    async def refresh(self) -> Task:
        """Return the task as it is now.

        Raises:
            TaskDoesNotExistError: It was deleted, or has expired.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        return await fetch(self._client, self.id)

    async def wait(self, timeout: float | None = None) -> Any:
        """Wait until the task has ended, and return its result.

        Args:
            timeout: Seconds to wait at most; None to wait for ever.

        Raises:
            TaskFailedError: It has failed. `error` says why.
            TaskUnfinishedError: It has not ended within the timeout (a TimeoutError).
            TaskDoesNotExistError: It was deleted, or has expired.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed: the task goes on.
        """
        validation.timeout(timeout)
        task = await self.wait_for_change(timeout, until=FINISHED)
        if not task.finished:
            raise TaskUnfinishedError(
                f"the task {self.id} has not ended: it is {task.status} after {timeout:g} seconds. Wait again, or "
                "cancel it", id=self.id,
            )  # fmt: skip
        if task.status == "failed":
            raise TaskFailedError(f"the task {self.id} failed: {task.error}", id=self.id, error=task.error or "")
        return task.result

    async def wait_for_change(self, timeout: float | None = None, *, until: frozenset[str] | None = None) -> Task:
        """Return the task when it differs from this snapshot, or as it is after the timeout.

        Args:
            timeout: Seconds to wait at most; None to wait for ever.
            until: Wait for one of these statuses instead.

        Raises:
            TaskDoesNotExistError: It was deleted, or has expired.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = math.inf if timeout is None else loop.time() + timeout
        channels, channel = channels_of(self._client), task_key(raw(self.id))
        while True:
            noted = channels.generation(channel)
            task = await self.refresh()
            there = task.status in until if until is not None else task.fields != self.fields
            remaining = deadline - loop.time()
            if there or remaining <= 0:
                return task
            parked = channels.park(channel, noted, min(POLL, remaining))
            try:
                await asyncio.wait((parked,))
            finally:
                parked.cancel()
            parked.result()

    def _decoded(self, name: str) -> Any:
        text = self.fields.get(name)
        return None if text is None else decoded(text)


def number(fields: Mapping[str, str], name: str) -> float | None:
    """Return a field that is a number; None if it is missing or none."""
    try:
        found = float(fields.get(name, ""))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def whole(fields: Mapping[str, str], name: str) -> int | None:
    """Return a field that is a whole number of at least 0; None if it is missing or none."""
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def fetch(client: Client, task_id: str) -> Task:
    """Return a task.

    Raises:
        TypeError: The id is not a string.
        TaskDoesNotExistError: There is no such task.
        PressureError: The server cannot be asked.
    """
    validation.text(task_id, "task_id")
    client.check()
    fields = await load(client, raw(task_id))
    if fields is None:
        raise TaskDoesNotExistError(f"there is no task {task_id}: it was deleted or has expired, or never was",
                                    id=task_id)  # fmt: skip
    return Task(client, task_id, fields)


def new_id() -> bytes:
    """Return a random id, a UUID of version 4."""
    raw = os.urandom(16).hex()
    variant = "89ab"[int(raw[16], 16) & 3]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}".encode()
