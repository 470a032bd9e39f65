"""A task, as the server knew it at one moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from apressure import validation
from apressure.core.waiting import moment
from apressure.exceptions import ServerError, TaskDoesNotExistError, TaskFailedError, TaskUnfinishedError
from apressure.tasks.codec import decoded
from apressure.tasks.engine.answers import Claim, fields_of, raw, text
from apressure.tasks.engine.keys import task_key
from apressure.tasks.engine.waits import POLL, channels_of

if TYPE_CHECKING:
    from apressure.connection.client import Client

T = TypeVar("T")

FINISHED: Final = frozenset({"complete", "failed"})
"""The statuses of tasks that have ended."""


def _text(fields: Mapping[str, str], name: str) -> str | None:
    return fields.get(name)


def _value(fields: Mapping[str, str], name: str) -> Any:
    """Return a field as a value of JSON, or a plain string."""
    text = fields.get(name)
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


class Field(Generic[T]):
    """A field of a task's hash, as an attribute of the same name.

    Args:
        read: Returns its value, of all fields and its name.
    """

    def __init__(self, read: Callable[[Mapping[str, str], str], T]) -> None:
        self._read = read

    def __set_name__(self, owner: type[Task], name: str) -> None:
        self._name = name

    def __get__(self, task: Task, owner: type[Task]) -> T:
        return self._read(task.fields, self._name)


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

    status: Field[str | None] = Field(_text)
    """`"scheduled"`, `"pending"`, `"reserved"`, `"started"`, `"complete"` or `"failed"`."""

    @property
    def finished(self) -> bool:
        """Whether it is complete or failed."""
        return self.status in FINISHED

    queue: Field[str | None] = Field(_text)
    """The name of its queue."""

    parameters: Field[Any] = Field(_value)
    """What it was enqueued with: a value of JSON, or a plain string."""

    result: Field[Any] = Field(_value)
    """What it completed with: a value of JSON, or a plain string; None before."""

    @property
    def error(self) -> str | None:
        """Why it failed; None unless it has."""
        return self.fields.get("error") if self.status == "failed" else None

    node: Field[str | None] = Field(_text)
    """The listener that has it, or had it last: `[hostname]_[pid]`."""

    pid: Field[int | None] = Field(whole)
    """The process that runs it, or ran it last."""

    created: Field[float | None] = Field(number)
    """When it was enqueued or scheduled, in seconds since 1970."""

    updated: Field[float | None] = Field(number)
    """When it changed last, in seconds since 1970."""

    eta: Field[float | None] = Field(number)
    """When it is, or was, due, in seconds since 1970; None if it was not scheduled."""

    @property
    def attempts(self) -> int:
        """How often nodes of apressure have reserved it. The released blueque does not count its own reservations."""
        return whole(self.fields, "attempts") or 0

    progress: Field[float | None] = Field(number)
    """How far it has come, from 0 to 1; None if it does not tell."""

    progress_message: Field[str | None] = Field(_text)
    """What it said last about its progress."""

    process_started: Field[float | None] = Field(number)
    """When the process that runs it began, in seconds since 1970; None if that is unknown."""

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
            since = moment()
            task = await self.refresh()
            there = task.status in until if until is not None else task.fields != self.fields
            remaining = deadline - loop.time()
            if there or remaining <= 0:
                return task
            await channels.wait(channel, since, min(POLL, remaining))


async def fetch(client: Client, task_id: str) -> Task:
    """Return a task.

    Raises:
        TypeError: The id is not a string.
        TaskDoesNotExistError: There is no such task.
        PressureError: The server cannot be asked.
    """
    validation.text(task_id, "task_id")
    client.check()
    task = await _load(client, raw(task_id))
    if task is None:
        raise TaskDoesNotExistError(f"there is no task {task_id}: it was deleted or has expired, or never was",
                                    id=task_id)  # fmt: skip
    return task


async def load_many(client: Client, task_ids: Iterable[bytes]) -> list[Task]:
    """Return tasks; those that are missing, or no hash, are left out."""
    tasks = await asyncio.gather(*(_load(client, task_id, damaged=True) for task_id in task_ids))
    return [task for task in tasks if task is not None]


async def _load(client: Client, task_id: bytes, damaged: bool = False) -> Task | None:
    """Return a task; None if there is no such task or, with `damaged`, if its key has another type."""
    try:
        flat = await client.connection.ask(b"HGETALL", task_key(task_id), reads=True)
    except ServerError as error:
        if damaged and error.code == "WRONGTYPE":
            return None
        raise
    return Task(client, text(task_id), fields_of(flat)) if flat else None
