"""A message in flight under a lease of its own, as a program sees it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from apressure import dead_letters
from apressure.core.due import Due, due_of
from apressure.core.leases.arguments import lease_of
from apressure.exceptions import LeaseLostError, PressureError, UnsupportedError

T = TypeVar("T")


class Claimed(ABC):
    """A message that this client has claimed: it is settled once.

    Attributes:
        settled: Whether it was acknowledged or given back here.
    """

    __slots__ = ("settled",)

    _noun: ClassVar[str]
    """What it is, for errors."""

    _gone: ClassVar[str]
    """Why it cannot be settled once its lease has ended, for errors."""

    _endings: ClassVar[str] = "acknowledged or given back"
    """How it is settled, for errors."""

    _done: ClassVar[Any] = True
    """The outcome of a change that was made."""

    settled: bool

    @property
    @abstractmethod
    def id(self) -> str:
        """The message's id."""

    @property
    @abstractmethod
    def _queue_name(self) -> str:
        """The name of its queue."""

    @abstractmethod
    async def _make(self, change: Any) -> Any:
        """Make a change on the server; returns its outcome."""

    async def _settle(self, change: Any, what: str) -> None:
        self._begin(what)
        try:
            outcome = await self._make(change)
        except Exception:
            self._reopen()  # another try may succeed
            raise
        if outcome != self._done:
            raise self._refusal(outcome, what)

    def _begin(self, what: str) -> None:
        self._check(what)
        self.settled = True

    def _reopen(self) -> None:
        self.settled = False

    def _check(self, what: str) -> None:
        if self.settled:
            raise RuntimeError(f"the {self._noun} {self.id} cannot be {what}: it was {self._endings} before")

    def _refusal(self, outcome: Any, what: str) -> PressureError:  # noqa: ARG002 (some kinds tell why)
        """Return the error for a change that was not made."""
        return self.lost(what)

    def lost(self, what: str) -> LeaseLostError:
        """Return the error for a message whose lease has ended."""
        name = self._queue_name
        text = f"the {self._noun} {self.id} of {name!r} was not {what}: {self._gone}"
        return LeaseLostError(text, name=name, role="consumer")


class Hand(Protocol):
    """What a consumer has in hand, as a delivery sees it; see `leases.in_hand.ClaimHand`.

    Attributes:
        claims: The deliveries that are neither settled nor lost; each one is its own key.
        renewal: What keeps its leases renewed.
    """

    claims: dict[Any, Any]
    renewal: Any

    def failed(self, error: Exception) -> None:
        """An acknowledgement that nobody waits for has failed."""


class Delivered(ABC, Generic[T]):
    """A message that was delivered.

    Attributes:
        decode: Decodes it.
    """

    __slots__ = ()

    decode: Callable[[bytes], T]

    @property
    @abstractmethod
    def raw(self) -> bytes:
        """The message, in bytes."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """How often it has been delivered, this time included."""

    @property
    def item(self) -> T:
        """The message, decoded.

        Raises:
            DecodeError: It cannot be decoded. It is still in flight: acknowledge it or give it back.
        """
        return self.decode(self.raw)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before: that client died, failed, was slow or gave it back.

        A released okq does not tell: there, whether this queue object received it before.
        """
        return self.attempts > 1

    @property
    def cost(self) -> int:
        """For how many messages it counts against the rate of the queue: `put(cost=)`."""
        return 1

    @property
    def can_delay(self) -> bool:
        """Whether `nack(delay=)` works: not on a released okq."""
        return True


class LeasedDelivery(Claimed, Delivered[T], Generic[T]):
    """A message in flight: no other consumer gets it until its lease ends.

    A kind of queue sets the attributes: one more call would cost each item.

    Attributes:
        settled: Whether `ack` or `nack` has been called.
        failure: Why this attempt failed, as it is kept; empty if that is unknown.
        certain_until: Until when its lease has certainly not ended, by the clock of its consumer.
        decode: Decodes it.
        handed_out: Its consumer has given it to the program.
    """

    __slots__ = ("_in_hand", "certain_until", "decode", "failure", "handed_out")

    _acked: ClassVar[str] = "acknowledged"
    """What `ack` has done, for errors."""

    _in_hand: Hand | None
    failure: bytes
    certain_until: float
    handed_out: bool

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self.raw)} bytes, attempt {self.attempts}>"

    # What a kind of queue says.

    @property
    @abstractmethod
    def _keeps_errors(self) -> bool:
        """Whether the queue keeps why attempts failed."""

    def _change(self, back: bool, due: Due | None = None) -> Any:  # noqa: ARG002
        """Return the change that acknowledges it or gives it back, to be due then, as `_make` takes it."""
        return back

    def _replied(self, reply: bytes) -> Any:
        """Return the change that acknowledges it with a reply of `encode_reply`, as `_make` takes it."""
        raise NotImplementedError

    @property
    @abstractmethod
    def _released(self) -> Any:
        """The change that gives it back as if it had not been delivered, as `_make` takes it."""

    def _is_last(self) -> bool:
        """Whether this was the last attempt: given back, it becomes a dead letter."""
        return False

    @abstractmethod
    async def _extend(self, seconds: float) -> bool:
        """Have the lease last for at least so many seconds from now; returns whether there was one."""

    # What programs call.

    async def ack(self) -> None:
        """Acknowledge the message: it never comes again.

        Raises:
            LeaseLostError: Its lease ended before, and others get it, or somebody has acknowledged it.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            RuntimeError: It was settled before.

        Cancelled, it waits for the outcome, then raises: the message is acknowledged or in flight.

        On this kind:
            EventQueue: The specification's QACK. An okq server knows a claim by the event's id alone. So on `okq://`,
                this acknowledges the event even if another consumer has it by then: the work has been done.
            TaskQueue: The task is complete, without a result. `complete` takes one.
            FileQueue: The file is deleted (specification: Deleted). QueueDoesNotExistError: the directory was deleted
                or moved; where it was moved, the message is still there. StorageError: the file system refused; the
                message is still in flight. Cancelled, it does not wait.
        """
        await self._settle(self._change(False), self._acked)

    @property
    def asked(self) -> bool:
        """Whether a program waits for its reply (`ask` of the queue)."""
        return False

    async def still_asked(self) -> bool:
        """Whether a program still waits for the reply. The same as `asked`: a request expires when its asker leaves."""
        return self.asked

    async def reply(self, value: Any) -> None:
        """Acknowledge the message, and send its reply to the program that has asked (`ask` of the queue).

        If nobody has asked, it acknowledges the message.

        Args:
            value: The reply: bytes, or anything that JSON knows. Of a task it is the result, without bytes.

        Raises:
            LeaseLostError, OutcomeUnknownError, RuntimeError: As for `ack`.
            UnsupportedError: Messages of this kind of queue get no replies. It stays in flight.
            TypeError, ValueError: The value cannot be encoded. The message stays in flight.

        Cancelled, it waits for the outcome, then raises: the message is acknowledged with its reply, or in flight.
        """
        reply = self.encode_reply(value)
        await self._settle(self._replied(reply) if self.asked else self._change(False), self._acked)

    def encode_reply(self, value: Any) -> bytes:  # noqa: ARG002
        """Return a reply as it is sent. Raises as `reply` does."""
        raise UnsupportedError(f"a message of the queue {self._queue_name!r} gets no reply", name=self._queue_name)

    async def nack(self, error: BaseException | str | None = None, *, delay: float | None = None) -> None:
        """Give the message back: it waits again, first in line, or with `delay=` for its time.

        A delayed message waits on the server, with its attempts and its latest error: nobody holds a lease or memory
        for it, and the death of a process changes nothing. When it is due, it joins the end of the line.

        Args:
            error: Why; see `dead_letters` of the queue. None keeps no error of this attempt.
            delay: Seconds until it is due, by the server's clock; at most ten years. After its last attempt there is
                nothing to wait for: it goes to the dead letters.

        Raises:
            LeaseLostError, OutcomeUnknownError, RuntimeError: As for `ack`.
            TypeError, ValueError: The error is neither an exception nor a text, or `delay` is invalid. The message
                stays in flight.

        Cancelled, it waits for the outcome, then raises: the message is given back or in flight.

        On this kind:
            EventQueue: The specification's QACK with REDO; on `okq://` with an error, QFAIL of our servers, and
                with `delay=` their QLATER. A released okq cannot delay: ServerTooOldError.
            TaskQueue: The task is tried again, unless it was tried `max_attempts` times: then it fails with this error.
            FileQueue: It waits before all messages that were put later; after a delay, with another id, at the end. It
                raises what `ack` does. If the file system refuses to keep the error, the message is given back without
                it. Cancelled, it does not wait.
        """
        due = due_of({"delay": delay})
        if error is not None:
            self.note_error(error)
        if due is not None and self._is_last():
            due = None
        await self._settle(self._change(True, due), "given back")

    async def release(self) -> None:
        """Give the message back, first in line, as if it had not been delivered: that was no attempt.

        Raises:
            LeaseLostError, OutcomeUnknownError, RuntimeError: As for `ack`.

        Cancelled, it waits for the outcome, then raises: the message has gone back, or is in flight.

        On this kind:
            EventQueue: On a released okq it counts as a delivery, as `nack` does.
        """
        await self._settle(self._released, "given back")

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the message goes back: a dead letter shows its latest error.

        Without `max_attempts`, or with `keep_errors=False`, it is dropped.

        Raises:
            TypeError: The error is neither an exception nor a text.

        On this kind:
            TaskQueue: It is kept in any case: a task that fails shows it.
            FileQueue: It is written when the message is given back, or when its lease is renewed. If the process is
                killed before that, it is lost.
        """
        text = dead_letters.encode(error)
        if self._keeps_errors:
            self.failure = text

    async def extend(self, seconds: float) -> None:
        """Keep the message in flight for at least `seconds` from now. The lease never gets shorter.

        Raises:
            LeaseLostError: The lease ended before.
            RuntimeError: It was settled before.
            ServerTooOldError: The server is a released okq, which cannot do that.
            TypeError, ValueError: `seconds` is invalid.

        Cancelled, it is extended or not, and can be settled.
        """
        seconds = lease_of(seconds, "seconds")
        self._check("extended")
        if not await self._extend(seconds) and not self.settled:  # meanwhile
            raise self.lost("extended")
        if self._in_hand is not None:
            self._in_hand.renewal.standstill.extend(seconds)

    def renewed(self, until: float) -> None:
        """Note that the lease lasts until then at least. A kind may have it called in any thread."""
        self.certain_until = max(self.certain_until, until)

    def excused(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which its consumer is not taken for stuck: it waits for another queue."""
        hand = self._in_hand
        return contextlib.nullcontext() if hand is None else hand.renewal.standstill.excuse()

    # How it is settled.

    def _begin(self, what: str) -> None:
        super()._begin(what)
        if self._in_hand is not None and self._in_hand.claims.pop(self, None) is None:
            raise self.lost(what)

    def _reopen(self) -> None:
        super()._reopen()
        if self._in_hand is not None:
            self._in_hand.claims[self] = self


class BatchedDelivery(LeasedDelivery[T]):
    """A delivery whose acknowledgement need not be waited for: it leaves with others."""

    __slots__ = ()

    _settler: Any
    """Settles it: see `Settler.soon`."""

    def ack_soon(self, reply: bytes | None = None) -> None:
        """Acknowledge the message with the next step that leaves. If that fails, the consumer says so.

        Args:
            reply: What `encode_reply` has returned: the reply that goes with it.

        Raises:
            LeaseLostError: It is known already that the lease has ended.
            RuntimeError: It was settled before.
        """
        hand = self._in_hand
        if self.settled or (hand is not None and hand.claims.pop(self, None) is None):
            self._begin(self._acked)  # says why not
        self.settled = True
        self._settler.soon(self._change(False) if reply is None else self._replied(reply), self._not_acked)

    def _not_acked(self, outcome: Any) -> None:
        """An acknowledgement that nobody waits for has failed."""
        if self._in_hand is not None:
            error = outcome if isinstance(outcome, Exception) else self._refusal(outcome, self._acked)
            self._in_hand.failed(error)
