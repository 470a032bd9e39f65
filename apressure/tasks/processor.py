"""Says what happens to a task while it is processed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from apressure import dead_letters, logs, validation
from apressure.core.delivery import Claimed
from apressure.exceptions import PressureError, TaskDoesNotExistError
from apressure.tasks.codec import TaskCodec
from apressure.tasks.engine.answers import raw, text
from apressure.tasks.engine.steps import DONE, Change
from apressure.tasks.nodes import processes
from apressure.tasks.options import fraction_of
from apressure.tasks.task import Task, whole

if TYPE_CHECKING:
    from apressure.tasks.core import Core

OURS: Final = frozenset(
    {
        "status", "queue", "parameters", "result", "error", "node", "pid", "created", "updated", "eta", "attempts",
        "max_attempts", "on_orphan", "token", "progress", "progress_message", "process_started", "cancel_requested",
        "reclaimed_node", "returned", "failure", "failed_attempt", "letter_added",
    }
)  # fmt: skip
"""The fields of a task that have a meaning already."""

MAX_FIELDS: Final = 100
"""The most fields of a program in one step, which are arguments of one command there."""

encode_result: Final = TaskCodec().encode
NO_RESULT: Final = encode_result(None)


class Processor(Claimed):
    """Updates a task while it is processed; made by `TaskClient.processor`, also in another process than its listener.

    Only the reservation that the task was given with can update it: once the task was taken from its node, everything
    here raises LeaseLostError, and nothing is written. It does not renew the task's lease: its listener does.

    Args:
        core: The queue.
        task: The task, reserved.

    Attributes:
        claim: What names the reservation on the server.
        settled: Whether the task has been completed, failed or given back here.
        logged_reason: Why the task fails, for the log; empty to keep that to the task.
    """

    _noun = "task"
    _gone = "its lease has ended and another node gets it, or it has ended"
    _endings = "settled"
    _done = DONE

    logged_reason = ""

    _fields: Mapping[str, str]

    def __init__(self, core: Core[Any], task: Task) -> None:
        self.claim = task.claim
        self.settled = False
        self._core = core
        self._fields = task.fields
        self.task = task

    @functools.cached_property
    def task(self) -> Task:
        """The task, as it was when it was reserved."""
        return Task(self._core.client, self.id, self._fields)

    @property
    def id(self) -> str:
        """The task's id."""
        return text(self.claim.id)

    @property
    def _queue_name(self) -> str:
        return self._core.name

    async def start(self, pid: int | None = None) -> Any:
        """Note that a process of this host starts the task (specification: Task Started).

        Args:
            pid: The process; None for this one.

        Returns:
            The task's parameters.

        Raises:
            LeaseLostError: The task was taken from its node, or has ended.
            TaskDoesNotExistError: It was deleted.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            TypeError, ValueError: pid is no number of a process.

        Cancelled, it is started or not; starting it again is safe.
        """
        pid = os.getpid() if pid is None else validation.whole(pid, "pid")
        began = processes.started_at(pid)
        fields = {} if began is None else {"process_started": f"{began:.2f}"}
        await self._note(Change("start", self.claim, b"%d" % pid, fields), "started")
        return self.task.parameters

    async def progress(
        self, fraction: float | None = None, message: str | None = None, *, fields: Mapping[str, str] | None = None
    ) -> None:
        """Say how far the task has come.

        Args:
            fraction: From 0 to 1; None leaves it as it is.
            message: A text for people; None leaves it as it is.
            fields: Other fields of the task to set.

        Raises:
            LeaseLostError, TaskDoesNotExistError, OutcomeUnknownError: As for `start`.
            TypeError, ValueError: An argument is invalid, or a text cannot be encoded.

        Cancelled, it is noted or not.
        """
        noted = checked_fields(fields)
        if fraction is not None:
            noted["progress"] = repr(fraction_of(fraction))
        if message is not None:
            validation.text(message, "message").encode()
            noted["progress_message"] = message
        await self._note(Change("progress", self.claim, b"", noted), "updated")

    async def complete(self, result: Any = None, *, fields: Mapping[str, str] | None = None) -> None:
        """End the task with a result (specification: Task Completed Successfully).

        Args:
            result: A string, or anything that JSON knows.
            fields: Other fields of the task to set.

        Raises:
            LeaseLostError: The task was taken from its node, and others get it, or it has ended.
            TaskDoesNotExistError: It was deleted.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            RuntimeError: It was settled here before.
            TypeError, ValueError: The result cannot be encoded. The task goes on.

        Cancelled, it waits for the outcome, then raises: the task is complete or goes on.
        """
        change = Change("complete", self.claim, encode_result(result), checked_fields(fields))
        await self._settle(change, "completed")

    async def fail(self, error: BaseException | str, *, fields: Mapping[str, str] | None = None) -> None:
        """End the task with an error (specification: Task Failed). `TaskDelivery.nack` tries it again instead.

        Args:
            error: Why, as text; of an exception its class and message.
            fields: Other fields of the task to set.

        Raises:
            LeaseLostError, TaskDoesNotExistError, OutcomeUnknownError, RuntimeError, TypeError, ValueError: As for
                `complete`.

        Cancelled, it waits for the outcome, then raises: the task has failed or goes on.
        """
        reason, noted = why(error, self.task.attempts)
        await self._settle(Change("fail", self.claim, reason, {**noted, **checked_fields(fields)}), "failed")

    async def _settle(self, change: Change, what: str) -> None:
        await super()._settle(change, what)
        self._core.forget(self.claim)

    async def _note(self, change: Change, what: str) -> None:
        if (outcome := await self._make(change)) != self._done:
            raise self._refusal(outcome, what)

    async def _make(self, change: Change) -> str:
        self._core.check()
        outcome = await self._core.settler.settle(change)
        if outcome == self._done:
            self.note_dead(change)
        return outcome

    def note_dead(self, change: Change) -> None:
        """Count and log the task as a dead letter if this change has made it one: it failed, or was tried too often."""
        task, core = self.task, self._core
        limit = whole(task.fields, "max_attempts") or 0
        used_up = 0 < limit <= task.attempts
        if change.how == "fail" or (change.how in ("nack", "later") and used_up and not task.cancel_requested):
            core.steps.counts.dead_lettered_count += 1
            parameters = raw(task.fields.get("parameters", ""))
            logs.dead_letter("TaskQueue", core.name, task.id, task.attempts, parameters, reason=self.logged_reason)

    def _refusal(self, outcome: str, what: str) -> PressureError:
        if outcome == "-":
            return TaskDoesNotExistError(f"the task {self.id} was not {what}: it was deleted", id=self.id)
        return self.lost(what)


def checked_fields(fields: Mapping[str, str] | None) -> dict[str, str]:
    """Return fields of a program, checked.

    Raises:
        TypeError: A name or a value is not a string.
        ValueError: A name has a meaning of its own, a text cannot be encoded, or there are too many fields.
    """
    checked = dict(fields or {})
    if len(checked) > MAX_FIELDS:
        raise ValueError(f"a task takes at most {MAX_FIELDS} fields of a program at a time, not {len(checked)}")
    for name, value in checked.items():
        validation.text(name, "the name of a field")
        validation.text(value, f"the field {name!r}")
        if name in OURS:
            raise ValueError(f"the field {name!r} of a task has a meaning of its own. Choose another name")
        (name + value).encode()
    return checked


def why(error: BaseException | str, attempt: int) -> tuple[bytes, dict[str, str]]:
    """Return the text of an error, and the fields that keep it.

    Raises:
        TypeError: It is neither an exception nor a text.
    """
    kept = dead_letters.encode(error)
    text = error if isinstance(error, str) else str(dead_letters.decode(kept, attempt))
    fields = {"failure": kept.decode(), "failed_attempt": str(attempt)}
    return text.encode(errors="replace"), fields
