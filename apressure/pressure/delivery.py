"""Deliveries: messages in flight, as a program sees them that acknowledges by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from apressure import validation
from apressure.core import requests
from apressure.core.delivery import Delivered
from apressure.core.due import due_of
from apressure.pressure.leases.hand import Received
from apressure.pressure.leases.lease import Lease
from apressure.protocols import LONGEST_LEASE

T = TypeVar("T")


class Delivery(Delivered[T], Generic[T]):
    """A message in flight, to be acknowledged or given back.

    Attributes:
        raw: The message as it came, in bytes.
        attempts: How often it has been delivered, this time included.
        settled: `ack` or `nack` has been called.
    """

    __slots__ = ("_lease", "_number", "_request", "attempts", "decode", "raw", "settled")

    raw: bytes
    attempts: int

    def __init__(self, lease: Lease, received: Received, decode: Callable[[bytes], T]) -> None:
        self._lease = lease
        self._number, self.raw, self.attempts = received
        self.decode = decode
        self._request: str | None = None
        self.settled = False

    def __repr__(self) -> str:
        return f"<Delivery {self._number} of {len(self.raw)} bytes, attempt {self.attempts}>"

    @property
    def id(self) -> str:
        """What this delivery is called in logs. No other has that name: a message that comes again gets a new one."""
        return f"{self._lease.token.decode()}:{self._number}"

    @property
    def claim(self) -> tuple[Lease, int]:
        """The lease that it is in flight under, and its number there."""
        return self._lease, self._number

    async def ack(self) -> None:
        """Acknowledge the message: it is done with, and counted. Cancelled, it is acknowledged all the same.

        Raises:
            LeaseLostError: The lease had run out; somebody else gets, or got, the message again.
            RuntimeError: It was acknowledged or given back before.
        """
        self._check()
        self.settled = True
        self._lease.state.unsettled.ack(self._number)
        await self._lease.flush()

    @property
    def asked(self) -> bool:
        """Whether it is a request: a CloudEvent of a program that waits for its reply (`ask` of the queue)."""
        return bool(self._request_id)

    @property
    def _request_id(self) -> str:
        if self._request is None:
            self._request = requests.request_in(self.raw)
        return self._request

    async def still_asked(self) -> bool:
        """Look whether a program may still wait for the reply to this message.

        Returns:
            False if it is no request, or its asker is known to have left. What is known is kept for an hour.

        Raises:
            PressureError: The server cannot be asked.
        """
        return self.asked and await self._lease.still_asked(self._request_id)

    async def reply(self, value: Any) -> None:
        """Acknowledge the message, and send its reply to the program that has asked (`ask` of the queue).

        If nobody has asked, it acknowledges the message. Cancelled, it is acknowledged all the same, with its reply.

        Args:
            value: The reply: bytes, or anything that JSON knows.

        Raises:
            LeaseLostError, RuntimeError: As for `ack`.
            TypeError, ValueError: The value cannot be encoded. The message stays in flight.
        """
        reply = self.encode_reply(value)
        self._check()
        self.ack_soon(reply)
        await self._lease.flush()

    def encode_reply(self, value: Any) -> bytes:
        """Return a reply as it is sent. Raises as `reply` does."""
        return requests.encode_reply(value, self._lease.client.settings.max_message_size)

    def ack_soon(self, reply: bytes | None = None) -> None:
        """Acknowledge the message without waiting: together with others, in the next turn of the event loop.

        Args:
            reply: What `encode_reply` has returned: the reply that goes with it.

        If the server cannot do it, `consumer.on_lost` and the next operation of the consumer say so. The end of the
        consumer's block waits for it.

        Raises:
            LeaseLostError: The lease had run out; somebody else gets, or got, the message again.
            RuntimeError: It was acknowledged or given back before.
        """
        if self.settled:
            raise RuntimeError("this delivery was acknowledged or given back before")
        if self._lease.state.error is not None:
            self._lease.state.check()
        if reply is not None and self.asked:
            self._lease.state.unsettled.note_reply(self._number, self._request_id, reply)
        self.settled = True
        self._lease.state.unsettled.ack(self._number)

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the message goes back: a dead letter shows its latest error.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        if not self.settled:
            self._lease.state.unsettled.note_error(self._number, error)

    async def nack(self, error: BaseException | str | None = None, *, delay: float | None = None) -> None:
        """Give the message back, first in line, or with `delay=` for its time. Cancelled, it goes back all the same.

        A delayed message waits on the server, with its attempts: nobody holds the role, a lease or memory for it, and
        the death of a process changes nothing. When it is due, it joins the end of the line.

        Args:
            error: Why; see `AsyncQueue.dead_letters`. None keeps no error of this attempt.
            delay: Seconds until it is due, by the server's clock; at most ten years. After its last attempt there is
                nothing to wait for: it goes to the dead letters.

        Of several that are given back one after the other, the last one comes first; those that are given back at the
        same time, or by the end of the block, keep their order.

        Raises:
            LeaseLostError: The lease had run out: the message has been given back already.
            RuntimeError: It was acknowledged or given back before.
            TypeError, ValueError: The error is neither an exception nor a text, or `delay` is invalid. The message
                stays in flight.
        """
        due = None if delay is None else due_of({"delay": delay})
        self._check()
        if error is not None:
            self.note_error(error)
        if due is not None and not self._lease.state.is_last(self.attempts):
            self._lease.state.unsettled.note_due(self._number, due)
        self._lease.settling.give_back(self._number)
        self.settled = True
        await self._lease.flush()

    async def release(self) -> None:
        """Give the message back, first in line, as if it had not been delivered: that was no attempt.

        Cancelled, it goes back all the same.

        Raises:
            LeaseLostError, RuntimeError: As for `nack`.
        """
        self._check()
        self._lease.settling.release(self._number)
        self.settled = True
        await self._lease.flush()

    def excused(self) -> AbstractContextManager[None]:
        """Return a block in which its consumer is not taken for stuck: it waits for another queue."""
        return self._lease.renewal.standstill.excuse()

    async def extend(self, seconds: float) -> None:
        """Make the lease last for at least `seconds` from now.

        A thread renews leases while the process runs. This is for work that stops that thread, too, because it holds
        Python's GIL or stops the process, and for work that takes longer than `max_hold`.

        Raises:
            LeaseLostError: The lease had run out.
            RuntimeError: The delivery was acknowledged or given back before.
            TypeError, ValueError: `seconds` is not a number of more than 0 and at most 86400.
        """
        validation.seconds(seconds, "seconds", most=LONGEST_LEASE, above=True)
        self._check()
        self._lease.extend(seconds)
        await self._lease.flush()

    def _check(self) -> None:
        self._lease.state.check()
        self._lease.client.check()  # on another event loop nobody would answer
        if self._number not in self._lease.state.unsettled:
            raise RuntimeError("this delivery was acknowledged or given back before")
