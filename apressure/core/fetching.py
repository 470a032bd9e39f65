"""What the consumers of queues on a Redis server share: steps that bring deliveries, and signs of life."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.delivery import LeasedDelivery
from apressure.core.driver import OnAnswer
from apressure.core.leases.in_hand import ClaimHand
from apressure.core.prefetch import Chunk
from apressure.core.settling import Settler
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, PressureError

T = TypeVar("T")
D = TypeVar("D", bound=LeasedDelivery[Any])


class Fetched(Protocol):
    """A queue object on a Redis server, as its consumers see it."""

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""

    @property
    def steps(self) -> Any:
        """The queue's steps."""

    @property
    def settler(self) -> Settler[Any, Any]:
        """Settles its deliveries."""

    def deliveries(self, messages: Iterable[Any], until: float, hand: Any) -> list[Any]:
        """Return the deliveries of messages whose leases last until then, by the clock of the hand."""


class FetchingConsumer(QueueConsumer[T, D], Generic[T, D]):
    """A consumer whose deliveries come by steps, which are answered by a callback.

    Args:
        queue: The queue object.
        hand, chunk, options: As for `QueueConsumer`.
    """

    _heartbeat: ClassVar[float]
    """Seconds between two signs of life."""

    def __init__(self, queue: Fetched, hand: ClaimHand[D], chunk: Chunk, options: ConsumerOptions) -> None:
        self._steps = queue.steps
        super().__init__(queue, hand, chunk, options, self._steps.settle_timeout)
        self._series = self._steps.series()
        self._expected = queue.expected

    @abstractmethod
    async def _beat(self) -> None:
        """Give a sign of life, and mend what those have left that give none."""

    async def _flush(self) -> None:
        await asyncio.wait((self._queue.settler.flushed(),))

    def _send(self, step: Callable[[OnAnswer], object]) -> asyncio.Future[Any]:
        """Send a step that claims messages; what it brings is in the buffer when the future has its answer."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        step(self._taking(done))
        return done

    def _taking(self, done: asyncio.Future[Any]) -> OnAnswer:
        """Return what takes the answer of a step that is about to be sent, and completes the future with it."""
        until = self.hand.clock() + self.hand.term.seconds

        def on_answer(answer: Any) -> None:
            if (messages := self._steps.messages(answer)) is not None:
                self._steps.note(answer)
                self.hand.took(self._queue.deliveries(messages, until, self.hand))
                if self._state == "left":  # the block has ended meanwhile
                    self.hand.give_back_unseen()
            elif isinstance(answer, Wait) and answer.reason == "paused":
                self.hand.give_back_unseen()  # this client had asked in advance
            elif isinstance(answer, DurabilityError) and (messages := self._steps.messages(answer.answer)):
                self._steps.give_back_soon(messages)
            set_result_once(done, answer)

        return on_answer

    async def _answer_to(self, done: asyncio.Future[Any]) -> Any:
        """Return the answer to a step; an error is raised. Cancelled, it does what `_wait_for` does."""
        await self._wait_for(done)
        answer = done.result()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Wait):
            self._expected = self._expected or answer.created
        return answer

    async def _wait_for(self, done: asyncio.Future[Any]) -> None:
        """Wait until a step was answered; a cancellation comes out then, or after `settle_timeout`."""
        await wait_for_answer(done, None, self._settle_timeout)

    async def _stay_registered(self) -> None:
        """Give signs of life, until this is cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat)
            with contextlib.suppress(PressureError):  # the next one may get through
                await self._beat()
