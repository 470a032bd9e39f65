"""A message in flight, as a program sees it."""

# ruff: noqa: SLF001 (a delivery is a part of the queue object that received it)

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from apressure import dead_letters
from apressure.core.delivery import LeasedDelivery
from apressure.core.leases.in_hand import InHand
from apressure.exceptions import LeaseLostError
from apressure.files.options import check_lease
from apressure.files.receiving import Got
from apressure.files.storage import names
from apressure.files.storage.directory import Back

if TYPE_CHECKING:
    from apressure.files.queue import FileQueue

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
        queue: The queue object that received it.
        got: The message.
        in_hand: A consumer's deliveries that are neither settled nor lost; None for `receive`.
    """

    __slots__ = ("_error", "_filename", "_key", "_queue", "handed_out")

    _noun = "message"

    _in_hand: Hand | None

    def __init__(self, queue: FileQueue[T], got: Got, in_hand: Hand | None = None) -> None:
        self._queue = queue
        self._error: bytes | None = None
        self._in_hand = in_hand
        self._key = got.key
        self._filename = got.filename
        self.certain_until = got.expires
        self.handed_out = False
        self._decode = queue._items.decode
        self.raw = got.data
        self.attempts = got.attempts
        self.settled = False

    @property
    def id(self) -> str:
        """The message's id, for `FileQueue.ack` in any process."""
        return names.id_of(self._key)

    @property
    def expires(self) -> datetime:
        """When its lease ends; from then on another client may get it."""
        return datetime.fromtimestamp(self.certain_until, UTC)

    @property
    def claim(self) -> FileDelivery[T]:
        """What names it in its consumer's hand: itself. The same message may come again."""
        return self

    @property
    def put_at(self) -> datetime:
        """When it was put, as its id says."""
        return datetime.fromtimestamp(names.time_of(self._key) / 1e6, UTC)

    async def ack(self) -> None:
        """Acknowledge the message: it is deleted (specification: Deleted).

        Raises:
            LeaseLostError: Its lease has ended and another client has requeued it, or it was acknowledged by its id.
            QueueDoesNotExistError: The directory was deleted or moved. Where it was moved, the message is still there.
            RuntimeError: It was settled before.
            StorageError: The file system refused. It is still in flight.

        Cancelled, it is deleted or still in flight.
        """
        await self._settle(None, "acknowledged")

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the message goes back: a dead letter shows its latest error.

        The error is written when the message is given back, or when its lease is renewed. If the process is killed
        before that, it is lost. It is kept only with `max_attempts`.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        encoded = dead_letters.encode(error)
        if not self.settled and self._queue._receiver.keeps_errors:
            self._error = encoded

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the message back: it waits again, before all messages that were put later.

        Args:
            error: Why; see `FileQueue.dead_letters`. None keeps no error of this attempt. If the file system refuses to
                keep it, the message is given back without it.

        Raises:
            LeaseLostError, QueueDoesNotExistError, RuntimeError, StorageError: As for `ack`.
            TypeError: The error is neither an exception nor a text.

        Cancelled, it is given back or still in flight.
        """
        if error is not None:
            self.note_error(error)
        await self._settle(self.id, "given back")

    async def extend(self, seconds: float | None = None) -> None:
        """Start a new lease. Its time does not count for the `max_hold` of a consumer.

        Args:
            seconds: How long it lasts from now on, also if the old one was longer; None for the queue's `lease`.

        Raises:
            LeaseLostError, QueueDoesNotExistError, RuntimeError, StorageError: As for `ack`.

        Cancelled, it is extended or not, and can be settled.
        """
        self._check("extended")
        lease = self._queue._store.settings.lease if seconds is None else check_lease(seconds, "seconds")
        await self.renew(lease)
        if self._in_hand is not None:
            self._in_hand.extended(lease)

    async def renew(self, seconds: float) -> None:
        """Start a new lease, which lasts for so long from now on; see `extend`."""
        until = self._queue._receiver.until(seconds)
        if self._error is not None:
            await self._keep_error()
        filename = names.taken_name(self._key, until)
        if filename == self._filename:  # only a rename to another name shows whether it is still ours
            until += 0.001
            filename = names.taken_name(self._key, until)
        if await self._rename(filename):
            self._filename, self.certain_until = filename, until
        elif not self.settled:  # meanwhile
            raise self._lost("extended")

    def given_back(self) -> Back:
        """Return the argument for `Receiver.give_back`. What the program has not seen does not count as delivered."""
        return Back(self._filename, self._key, self.attempts - (not self.handed_out), self._error)

    async def _settle(self, after: str | None, what: str) -> None:
        self._check(what)
        self.settled = True
        try:
            if after is not None and self._error is not None:
                await self._keep_error()
            there = await self._rename(after)
        except Exception:
            self.settled = False  # another try may succeed
            raise
        finally:
            if self.settled and self._in_hand is not None:  # also if cancelled
                self._in_hand.pop(self, None)
        if not there:
            raise self._lost(what)

    async def _rename(self, after: str | None) -> bool:
        """Rename the message's file, or delete it (None). False where another client has renamed or deleted it."""
        with self._queue._operation():
            receiver = self._queue._receiver
            while True:
                before = self._filename
                done = await (receiver.remove(before) if after is None else receiver.rename(before, after))
                if done or before == self._filename:  # otherwise it was being extended
                    return done

    async def _keep_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            with self._queue._operation():
                await self._queue._receiver.note(self._filename, self._key, error, self.attempts)

    def _lost(self, what: str) -> LeaseLostError:
        return LeaseLostError(
            f"the message {self.id} of {self._queue.name!r} was not {what}: its lease has ended "
            "and another client gets it again, or it was acknowledged by its id",
            name=self._queue.name,
            role="consumer",
        )


class Hand(InHand[FileDelivery[Any], FileDelivery[Any]]):
    """A consumer's deliveries."""
