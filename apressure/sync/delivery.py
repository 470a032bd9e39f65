"""A message in flight, for code without asyncio."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from apressure import protocols
from apressure.concurrency.loop_thread import LoopThread
from apressure.protocols import Delays, NotesErrors
from apressure.sync.calls import Behind

T = TypeVar("T")


class Delivery(Generic[T]):
    """A message in flight, to be acknowledged or given back."""

    def __init__(self, delivery: protocols.Delivery[T], loop: LoopThread) -> None:
        self._behind: Any = delivery
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._behind)

    id = Behind[str]("The name of the delivery, for logs.")
    item = Behind[T](
        "The message, decoded. Raises DecodeError where it cannot be decoded; the message stays in flight."
    )
    raw = Behind[bytes]("The encoded message.")
    attempts = Behind[int]("How often the message has been delivered, this time included.")
    redelivered = Behind[bool]("Whether it was delivered before, and not acknowledged.")
    cost = Behind[int]("For how many messages it counts against the rate of the queue: `put(cost=)`.")
    asked = Behind[bool]("Whether it is a request: a program waits for its reply (`ask` of the queue).")
    settled = Behind[bool]("Whether `ack` or `nack` has been called.")

    @property
    def can_delay(self) -> bool:
        """Whether `nack(delay=)` works: its queue keeps delayed messages."""
        return isinstance(self._behind, Delays) and self._behind.can_delay

    def ack(self) -> None:
        """Acknowledge the message: it never comes again. Raises LeaseLostError where it has gone back meanwhile."""
        self._loop.call(self._behind.ack)

    def ack_soon(self) -> None:
        """Acknowledge the message with the next step that leaves. If that fails, the consumer says so.

        Raises:
            LeaseLostError: It is known already that the message has gone back.
        """
        self._loop.run(self._behind.ack_soon)

    def nack(self, error: BaseException | str | None = None, *, delay: float | None = None) -> None:
        """Give the message back, first in line, or with `delay=` for its time.

        Raises LeaseLostError where it has gone back meanwhile.

        Args:
            error: Why, for dead letters; None keeps no error of this attempt.
            delay: Seconds until it is due.
        """
        options = {} if delay is None else {"delay": delay}
        self._loop.call(lambda: self._behind.nack(*(() if error is None else (error,)), **options))

    def still_asked(self) -> bool:
        """Whether a program may still wait for the reply. False if it is known that none does."""
        return bool(self._loop.call(self._behind.still_asked))

    def reply(self, value: Any) -> None:
        """Acknowledge the message, and send its reply to the program that has asked: bytes, or what JSON knows.

        Raises:
            LeaseLostError: The message has gone back meanwhile.
            UnsupportedError, TypeError, ValueError: It gets no reply, or the value cannot be sent. It stays in flight.
        """
        self._loop.call(lambda: self._behind.reply(value))

    def release(self) -> None:
        """Give the message back, first in line, as if it had not been delivered: that was no attempt.

        Raises LeaseLostError where it has gone back meanwhile.
        """
        self._loop.call(self._behind.release)

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the message goes back, on kinds of queue that keep it.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        if isinstance(self._behind, NotesErrors):
            self._loop.run(lambda: self._behind.note_error(error))

    def extend(self, seconds: float) -> None:
        """Keep the message in flight for at least `seconds` from now."""
        self._loop.call(lambda: self._behind.extend(seconds))
