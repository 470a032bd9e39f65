"""Schedules of a queue: `every`, and what drives them.

The queue keeps a record of each. A service that drives it puts the item and writes the record with the next time in one
step, if the record is still the one that it has read. So each occasion is put once, however many services there are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from apressure import exceptions as errors
from apressure import logs
from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration
from apressure.core.errors import closed
from apressure.core.occasions import Look, Missed, Schedule, checked, checked_name, decode
from apressure.core.waiting import FULL
from apressure.core.workers import Beside
from apressure.items import Items

T = TypeVar("T")
S = TypeVar("S")

logger = logging.getLogger("apressure")

LOOK: Final = 5.0
"""Seconds after which a driver looks again: then it knows a schedule that others have changed."""
AGAIN: Final = 1.0
"""Seconds after which a driver tries again to put an item that the queue has refused."""
UNAVAILABLE: Final = (errors.ServerTooOldError, errors.ScriptingRefusedError, errors.PermissionDeniedError)
"""What says that there are no schedules on this server, or that they are not for this client."""
MOST: Final = 1000
"""The most schedules of a queue."""


class ScheduleStore(Protocol):
    """The steps of a kind of queue that are about its schedules."""

    async def read(self) -> tuple[int, dict[str, bytes]]:
        """Return the time, in milliseconds since 1970 by the server's clock, and the records by name, in order."""

    async def beside(self) -> Beside:
        """Return how many schedules there are, how many dedup ids the queue remembers, and who works on it."""

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        """Write a record, or with None delete it, if it was that before. Returns whether it was."""

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        """The same, and put a message in the same step.

        Returns:
            `put`; or, if nothing was done, `changed` for another record, or why the queue refused the message: `full`,
            `closed`, `missing`, `busy`, or another word.
        """


class Schedules(Administration, Generic[T]):
    """A queue that puts items at certain times."""

    _items: Items[T]

    @property
    @abstractmethod
    def _schedules(self) -> ScheduleStore:
        """The steps."""

    @with_deadline()
    async def every(
        self, name: str, when: str | float, item: T, *, timezone: str = "UTC", missed: Missed = "one",
        deadline: float | None = None,
    ) -> Schedule:  # fmt: skip
        """Have an item put at certain times: each occasion once, however many processes call this and drive it.

        Every `serve` of the queue drives its schedules, and so does `apressure schedules run-forever`. Each of them
        knows of a change within five seconds. An occasion waits for room while the queue is full, also for other
        producers. It is put when the server's clock says so.

        Args:
            name: The schedule's name in this queue. If there is one of the same name, it becomes this one: the same
                definition changes nothing, another one begins now.
            when: An expression of cron with five fields, such as `"0 9 * * mon-fri"`, or six with the second first.
                Or the seconds from one occasion to the next, counted from 1970, at least 1.
            item: What is put each time.
            timezone: Whose times of day they are: a name such as `"Europe/Berlin"`.
            missed: When nothing has driven it for a while: put `"one"` item for all occasions that were missed,
                `"all"` of them, or `"none"` that is more than a minute late.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueDoesNotExistError: The AsyncQueue does not exist, or a FileQueue with `auto_create=False`.
            MissingExtraError: cronsim is not installed: `pip install 'apressure[schedules]'`.
            TypeError, ValueError: An argument is invalid, or the queue has 1,000 schedules.

        Cancelled, the schedule is there, or not. Deleting the queue deletes it; `purge` and `close` leave it.
        """
        raw = self._items.encode(item)
        when, timezone, missed = checked(when, timezone, missed)
        if timezone != "UTC" and not isinstance(when, str):
            raise ValueError("seconds are counted from 1970: leave out timezone, or use an expression of cron")
        wanted = Schedule(name=checked_name(name), when=when, timezone=timezone, missed=missed, raw=raw)
        await self._check_exists()
        while True:
            now, records = await self._read()
            was = records.get(name)
            if was is None and len(records) >= MOST:
                raise ValueError(f"the queue {self.name!r} has {MOST} schedules, the most that it may have")
            schedule = wanted
            if was is not None and (kept := self._decoded(name, was)) is not None:
                if kept.definition == wanted.definition:
                    return kept
                schedule = dataclasses.replace(wanted, paused=kept.paused, count=kept.count, last=kept.last)
            schedule = schedule.after(now)
            if await self._schedules.write(name, was, schedule.encode()):
                return schedule

    @with_deadline(reads=True)
    async def schedules(self, *, deadline: float | None = None) -> list[Schedule]:
        """Return the schedules, by name. A damaged record, which another program wrote, is left out; the log names it.

        Raises:
            PressureError: As for `statistics`.
        """
        _, records = await self._read()
        found = (self._decoded(name, record) for name, record in records.items())
        return [schedule for schedule in found if schedule is not None]

    @with_deadline()
    async def pause_schedule(self, name: str, *, deadline: float | None = None) -> bool:
        """Pause a schedule; returns whether that is new. What it would have put meanwhile is not put later.

        Raises:
            ScheduleDoesNotExistError: There is no such schedule.

        Cancelled, it is paused, or not.
        """
        return await self._set_paused(name, True)

    @with_deadline()
    async def resume_schedule(self, name: str, *, deadline: float | None = None) -> bool:
        """Go on with a schedule, from the next occasion on; returns whether it was paused. See `pause_schedule`.

        Cancelled, it is resumed, or not.
        """
        return await self._set_paused(name, False)

    @with_deadline()
    async def run_schedule(self, name: str, *, deadline: float | None = None) -> None:
        """Put a schedule's item now, as an occasion more. Its next time stays, also when it is paused.

        Raises:
            ScheduleDoesNotExistError: There is no such schedule.
            QueueFullError, QueueClosedError, QueueDoesNotExistError: As for `put_nowait`.
            QueueInUseError: Another client holds the producer role of an AsyncQueue.
            OutcomeUnknownError: The connection broke and could not be restored in time: perhaps it was put.

        Cancelled, the item is in the queue, or not.
        """
        while True:
            now, schedule, was = await self._schedule(name)
            outcome = await self._schedules.put(name, was, schedule.put(now).encode(), schedule.raw)
            if outcome == "put":
                return
            if outcome != "changed":
                raise self._refused(outcome)

    @with_deadline()
    async def delete_schedule(self, name: str, *, deadline: float | None = None) -> None:
        """Delete a schedule. What it has put stays in the queue.

        Raises:
            ScheduleDoesNotExistError: There is no such schedule.

        Cancelled, it is deleted, or not.
        """
        while True:
            _, was = await self._record(name)
            if await self._schedules.write(name, was, None):
                return

    async def drive_schedules(self) -> float:
        """Put the items of all schedules that are due. `serve` calls it; call it in a loop where nothing else does.

        Returns:
            Seconds until it is to be called again: until the next occasion, at most five.

        Raises:
            PressureError: As for `put`. No occasion is lost: the next call puts it.

        Cancelled, an occasion was put, or not; then the next call does.
        """
        now, records = await self._read()
        pause = LOOK
        for name, was in records.items():
            schedule = self._decoded(name, was)
            if schedule is None:
                continue
            look = schedule.look(now)
            if look is not None:
                later = await self._carry_out(name, was, look, schedule)
                if later is not None:
                    pause = min(pause, later)
                    continue
                schedule = look.schedule
            if schedule.next is not None and not schedule.paused:
                pause = min(pause, max(0.0, schedule.next - now / 1000))
        return pause

    async def _carry_out(self, name: str, was: bytes, look: Look, before: Schedule) -> float | None:
        """Put an occasion, or pass over it. Returns the seconds until the next try; None if that was done."""
        becomes = look.schedule.encode()
        if not look.put:
            logger.warning("the schedule %r of the queue %r has missed an occasion", name, self.name)
            return None if await self._schedules.write(name, was, becomes) else 0.0
        try:
            outcome = await self._schedules.put(name, was, becomes, before.raw)
        except errors.OutcomeUnknownError:
            return 0.0  # the record tells whether it was put
        if outcome == "put":
            logger.debug("the schedule %r has put an item into the queue %r", name, self.name)
            return None
        return {"changed": 0.0, "closed": LOOK, "missing": LOOK}.get(outcome, AGAIN)

    async def _set_paused(self, name: str, paused: bool) -> bool:
        while True:
            now, schedule, was = await self._schedule(name)
            if schedule.paused is paused:
                return False
            changed = dataclasses.replace(schedule, paused=paused)
            if await self._schedules.write(name, was, (changed if paused else changed.after(now)).encode()):
                return True

    async def _schedule(self, name: str) -> tuple[int, Schedule, bytes]:
        """Return the time, a schedule, and its record."""
        now, was = await self._record(name)
        return now, decode(name, was), was

    async def _record(self, name: str) -> tuple[int, bytes]:
        """Return the time, and the record of a schedule."""
        checked_name(name)
        now, records = await self._read()
        was = records.get(name)
        if was is None:
            raise errors.ScheduleDoesNotExistError(f"the queue {self.name!r} has no schedule {name!r}", name=self.name)
        return now, was

    async def _read(self) -> tuple[int, dict[str, bytes]]:
        self.check()
        return await self._schedules.read()

    async def _kept_beside(self) -> dict[str, Any]:
        """Return what is kept beside the queue, as fields of its statistics; none where that cannot be seen."""
        try:
            return (await self._beside())._asdict()
        except UNAVAILABLE:
            return {}

    async def _beside(self) -> Beside:
        return await self._schedules.beside()

    async def _with_beside(self, look: Coroutine[Any, Any, S]) -> tuple[S, dict[str, Any]]:
        """Return what a look at the queue tells, and what is kept beside it: both go to the server together."""
        looked, beside = await asyncio.gather(look, self._kept_beside())
        return looked, beside

    async def _check_exists(self) -> None:
        """Raise an error if the queue does not exist, where a put would. A kind that has such a rule says so."""

    def _decoded(self, name: str, record: bytes) -> Schedule | None:
        try:
            return decode(name, record)
        except ValueError as error:
            logs.schedule_damaged(self.name, name, error)
            return None

    def _refused(self, outcome: str) -> errors.PressureError:
        """Return the error for an item that the queue has refused."""
        match outcome:
            case "closed":
                return closed(self.name)
            case "full":
                return FULL.error(self.name)
            case "missing":
                return errors.QueueDoesNotExistError(f"the queue {self.name!r} does not exist", name=self.name)
            case "busy":
                text = f"the queue {self.name!r} has an exclusive producer"
                return errors.QueueInUseError(text, name=self.name, role="producer", holder=None)
            case _:
                return errors.QueueError(f"the queue {self.name!r} takes no item now ({outcome})", name=self.name)
