"""What the consumers of queues on a Redis server share: steps that bring deliveries, and signs of life."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.consumer import QueueConsumer
from apressure.core.delivery import LeasedDelivery
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, PressureError

T = TypeVar("T")
D = TypeVar("D", bound=LeasedDelivery[Any])


class FetchingConsumer(QueueConsumer[T, D], Generic[T, D]):
    """A consumer whose deliveries come by steps, which are answered by a callback.

    Its arguments and attributes are those of `QueueConsumer`. A kind of queue sets `_expected`: the queue must have
    been created.
    """

    _heartbeat: ClassVar[float]
    """Seconds between two signs of life."""

    _expected: bool

    @abstractmethod
    async def _beat(self) -> None:
        """Give a sign of life, and mend what those have left that give none."""

    @abstractmethod
    def _messages(self, answer: Any) -> list[Any] | None:
        """Return the messages that a step has claimed; None if its answer tells of something else."""

    @abstractmethod
    def _deliveries(self, messages: Sequence[Any], until: float) -> list[D]:
        """Return the deliveries of messages whose leases last until then, by the clock of the hand."""

    @abstractmethod
    def _note(self, answer: Any) -> None:
        """Count and log what a step has done."""

    @abstractmethod
    def _undo(self, messages: Sequence[Any]) -> object:
        """Send a step that gives back messages that nobody has seen."""

    def _send(self, step: Callable[[Callable[[Any], None]], object]) -> asyncio.Future[Any]:
        """Send a step that claims messages; what it brings is in the buffer when the future has its answer."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        until = self.hand.clock() + self.hand.term.seconds

        def on_answer(answer: Any) -> None:
            if (messages := self._messages(answer)) is not None:
                self._note(answer)
                self.hand.took(self._deliveries(messages, until))
                if self._state == "left":  # the block has ended meanwhile
                    self.hand.give_back_unseen()
            elif isinstance(answer, DurabilityError) and (messages := self._messages(answer.answer)):
                self._undo(messages)
            set_result_once(done, answer)

        step(on_answer)
        return done

    async def _answer_to(self, done: asyncio.Future[Any]) -> Any:
        """Wait for the answer to a step; an error is raised.

        A cancellation comes out when the answer is there, or after `settle_timeout`.
        """
        await wait_for_answer(done, None, self._settle_timeout)
        answer = done.result()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Wait):
            self._expected = self._expected or answer.created
        return answer

    async def _stay_registered(self) -> None:
        """Give signs of life, until this is cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat)
            with contextlib.suppress(PressureError):  # the next one may get through
                await self._beat()
