"""A message in flight, as a program sees it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from apressure.core.delivery import Hand, LeasedDelivery
from apressure.core.due import Due
from apressure.files.receiving import Got, Receiver
from apressure.files.storage import names
from apressure.files.storage.directory import Back

T = TypeVar("T")


class FileDelivery(LeasedDelivery[T]):
    """A message in flight: no other consumer gets it until its lease ends.

    Attributes:
        raw: The message's bytes.
        attempts: How often it has been delivered, this time included.
        settled: Whether `ack` or `nack` has been called.
        certain_until: When its lease ends, in seconds since 1970.
        handed_out: Its consumer has given it to the program.

    Args:
        receiver: That of the queue object that received it.
        decode: Decodes it.
        got: The message.
        in_hand: A consumer's deliveries that are neither settled nor lost; None for `receive`.
    """

    __slots__ = ("_filename", "_key", "_receiver", "attempts", "raw")

    raw: bytes
    attempts: int

    _noun = "message"
    _gone = "its lease has ended and another client gets it again, or it was acknowledged by its id"

    def __init__(self, receiver: Receiver, decode: Callable[[bytes], T], got: Got, in_hand: Hand | None = None) -> None:
        self._receiver = receiver
        self.decode = decode
        self._in_hand = in_hand
        self._key, self._filename, self.raw, self.attempts, self.certain_until, _ = got
        self.failure = b""
        self.settled = self.handed_out = False

    @property
    def id(self) -> str:
        """The message's id, for `FileQueue.ack` in any process."""
        return names.id_of(self._key)

    @property
    def expires(self) -> datetime:
        """When its lease ends; from then on another client may get it."""
        return datetime.fromtimestamp(self.certain_until, UTC)

    @property
    def put_at(self) -> datetime:
        """When it was put, as its id says."""
        return datetime.fromtimestamp(names.time_of(self._key) / 1e6, UTC)

    async def extend(self, seconds: float | None = None) -> None:
        """Start a new lease. Its time does not count for the `max_hold` of a consumer.

        Args:
            seconds: How long it lasts from now on, also if the old one was longer; None for the queue's `lease`.

        Raises:
            LeaseLostError, QueueDoesNotExistError, RuntimeError, StorageError: As for `ack`.

        Cancelled, it is extended or not, and can be settled.
        """
        self._check("extended")
        lease = self._receiver.settings.lease_of(seconds, "seconds")
        if not await self.renew(lease) and not self.settled:  # meanwhile
            raise self.lost("extended")
        if self._in_hand is not None:
            self._in_hand.renewal.standstill.extend(lease)

    async def renew(self, seconds: float) -> bool:
        """Start a new lease, which lasts for so long from now on. False if the old one has ended."""
        until = self._receiver.store.time() + seconds
        await self._keep_error()
        filename = names.taken_name(self._key, until)
        if filename == self._filename:  # only a rename to another name shows whether it is still ours
            until += 0.001
            filename = names.taken_name(self._key, until)
        renamed = await self._rename(filename)
        if renamed:
            self._filename, self.certain_until = filename, until
        return renamed

    _extend = renew

    def given_back(self) -> Back:
        """Return the argument for `Receiver.give_back`. What the program has not seen does not count as delivered."""
        return Back(self._filename, self._key, self.attempts - (not self.handed_out), self.failure or None)

    @property
    def _queue_name(self) -> str:
        return self._receiver.settings.name

    @property
    def _keeps_errors(self) -> bool:
        return not self.settled and self._receiver.keeps_errors

    def _is_last(self) -> bool:
        most = self._receiver.settings.max_attempts
        return most is not None and self.attempts >= most

    def _change(self, back: bool, due: Due | None = None) -> bool | Due:
        return back if due is None else due

    @property
    def _released(self) -> None:
        return None

    async def _make(self, change: bool | Due | None) -> bool:
        try:
            done = await self._carry_out(change)
        except asyncio.CancelledError:
            if change is not False:
                self._reopen()  # it keeps its name, and the end of the block gives it back
            raise
        if self._receiver.store.index.delayed:
            with self._receiver.operation():
                await self._receiver.promote()
        return done

    async def _carry_out(self, change: bool | Due | None) -> bool:
        if change is False:
            return await self._rename(None)
        if change is None:
            await self._receiver.count(self._filename, self.attempts - 1)
            return await self._rename(self.id)
        await self._keep_error()
        if change is True:
            return await self._rename(self.id)
        due = change.at(math.ceil(self._receiver.store.time() * 1000))
        return await self._rename(names.delayed_name(self._key, due), delayed=True)

    async def _rename(self, after: str | None, delayed: bool = False) -> bool:
        """Rename the message's file, or delete it (None). False where another client has renamed or deleted it."""
        receiver = self._receiver
        with receiver.operation():
            while True:
                before = self._filename
                done = await (receiver.remove(before) if after is None else receiver.rename(before, after, delayed))
                if done or before == self._filename:  # otherwise it was being extended
                    return done

    async def _keep_error(self) -> None:
        error, self.failure = self.failure, b""
        if error:
            with self._receiver.operation():
                await self._receiver.note(self._filename, self._key, error, self.attempts)
