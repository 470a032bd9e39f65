"""Messages as a program sees them that has received them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Generic, TypeVar

from apressure.exceptions import LeaseLostError
from apressure.files import names
from apressure.files.options import visibility
from apressure.files.receiving import Got, Receiver

T = TypeVar("T")


class Settler(Generic[T]):
    """What messages need of the queue object that received them.

    Args:
        name: The queue's name.
        receiver: Its steps.
        decode: Decodes a message.
        operation: What settling a message is in. It raises where the queue object cannot be used any more.
    """

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        decode: Callable[[bytes], T],
        operation: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.name = name
        self.decode = decode
        self._receiver = receiver
        self._operation = operation

    async def settle(self, filename: str, after: str | None) -> bool:
        """Rename, or delete, what was taken. False where it is not there any more."""
        with self._operation():
            if after is None:
                return await self._receiver.remove(filename)
            return await self._receiver.rename(filename, after)

    def until(self, seconds: float | None) -> float:
        """Return when a visibility timeout ends that begins now, in seconds since 1970."""
        return self._receiver.until(seconds if seconds is None else visibility(seconds))


class FileMessage(Generic[T]):
    """A message that was received: nobody else gets it until its visibility timeout ends.

    Attributes:
        id: Its id, with which `FileQueue.delete` deletes it, in any process.
        raw: The message as it came, in bytes.
        attempts: How often it has been handed out, this time included.
        settled: `ack` or `nack` has been called.
    """

    __slots__ = ("_expires", "_filename", "_key", "_settler", "attempts", "id", "raw", "settled")

    def __init__(self, settler: Settler[T], got: Got) -> None:
        self._settler = settler
        self._key = got.key
        self._filename = got.filename
        self._expires = got.expires
        self.id = names.id_of(got.key)
        self.raw = got.data
        self.attempts = got.attempts
        self.settled = False

    def __repr__(self) -> str:
        return f"<FileMessage {self.id} of {len(self.raw)} bytes, attempt {self.attempts}>"

    @property
    def item(self) -> T:
        """The message, decoded.

        Raises:
            DecodeError: It cannot be decoded. It is in flight still: acknowledge it or give it back.
        """
        return self._settler.decode(self.raw)

    @property
    def redelivered(self) -> bool:
        """It was handed out before, and not deleted: to a client that died, failed, was too slow or gave it back."""
        return self.attempts > 1

    @property
    def expires(self) -> datetime:
        """When its visibility timeout ends; from then on somebody else may get it."""
        return datetime.fromtimestamp(self._expires, UTC)

    @property
    def published(self) -> datetime:
        """When it was published, as its id says."""
        return datetime.fromtimestamp(names.time_of(self._key) / 1e6, UTC)

    async def ack(self) -> None:
        """Acknowledge the message: it is deleted (specification: Deleted).

        Raises:
            LeaseLostError: Its visibility timeout has ended and somebody has requeued it, or it was deleted by its id.
            RuntimeError: It was acknowledged or given back before.
            StorageError: The file system refused. It is in flight still.

        Cancelled, it is deleted all the same, or not at all.
        """
        await self._settle(None, "acknowledged")

    async def nack(self) -> None:
        """Give the message back: it waits again where it was, before everything that was published later.

        Raises:
            LeaseLostError, RuntimeError, StorageError: As for `ack`.

        Cancelled, it is given back all the same, or not at all.
        """
        await self._settle(self.id, "given back")

    async def extend(self, seconds: float | None = None) -> None:
        """Begin the visibility timeout anew.

        Args:
            seconds: How long it is from now on; None for what the queue has.

        Raises:
            LeaseLostError, RuntimeError, StorageError: As for `ack`.

        Cancelled, it is extended all the same, or not at all.
        """
        self._check("extended")
        until = self._settler.until(seconds)
        filename = names.taken_name(self._key, until)
        if filename == self._filename:  # another name, since that is what tells whether it is ours still
            until += 0.001
            filename = names.taken_name(self._key, until)
        if not await self._settler.settle(self._filename, filename):
            raise self._lost("extended")
        self._filename, self._expires = filename, until

    async def _settle(self, after: str | None, what: str) -> None:
        self._check(what)
        self.settled = True
        try:
            there = await self._settler.settle(self._filename, after)
        except OSError:
            self.settled = False  # another try may do
            raise
        if not there:
            raise self._lost(what)

    def _check(self, what: str) -> None:
        if self.settled:
            raise RuntimeError(f"the message {self.id} cannot be {what}: it was acknowledged or given back before")

    def _lost(self, what: str) -> LeaseLostError:
        return LeaseLostError(
            f"the message {self.id} of {self._settler.name!r} was not {what}: its visibility timeout has ended "
            "and somebody else gets it again, or it was deleted",
            name=self._settler.name,
            role="consumer",
        )
