"""The lane of operations that take messages: gets, pops, reservations.

What a step has taken for a taker who has left goes back, first in line and in order, before the next step of the lane.
That race exists once, here: a taker may be cancelled before the step leaves, while it is on its way, in the very turn
of the event loop in which the answer comes, or after that and before its task runs.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import set_result_once, wait_for_answer, wait_shielded
from apressure.core.driver import Request
from apressure.core.lanes import CARRIED, WITHDRAWN, Entry, Lane
from apressure.core.waiting import EMPTY, Wait, moment
from apressure.exceptions import DurabilityError, OutcomeUnknownError
from apressure.items import Items

logger = logging.getLogger("apressure")

M = TypeVar("M")
T = TypeVar("T")


class Wanted(Protocol):
    """What a step that takes is told, beside how many messages: a named tuple, so that equal ones share a step."""

    @property
    def lease(self) -> int:
        """Milliseconds; with 0, what is taken is acknowledged at once: at-most-once."""

    def _replace(self, *, expected: bool) -> Self:
        """Return it with `expected` changed: whether the queue must have been created."""


class Order(NamedTuple):
    """The place of some messages among all that a lane has taken.

    Attributes:
        step: The number of the step that took them.
        place: Their place among the messages of all steps.
        for_good: The step has acknowledged them, too.
    """

    step: int
    place: int
    for_good: bool


class Taken(list[M]):
    """Messages that one operation has taken.

    Attributes:
        order: Their place among all that the lane took.
    """

    def __init__(self, messages: Sequence[M], order: Order) -> None:
        super().__init__(messages)
        self.order = order


W = TypeVar("W", bound=Wanted)


class Take(Entry[Taken[Any]], Generic[W]):
    """An operation that takes one to `most` messages.

    Attributes:
        most: As given.
        want: What its step is told beside that.
    """

    def __init__(self, most: int, want: W) -> None:
        self.most = most
        self.want = want


class _Back(NamedTuple):
    """Messages that are to go back.

    Attributes:
        order: Their place among all that the lane took.
        messages: The messages, oldest first.
        done: Completes when they are back, or when that has failed.
    """

    order: Order
    messages: Sequence[Any]
    done: asyncio.Future[None]


class TakeLane(Lane[Take[W]], Generic[W, M]):
    """The operations of a client's tasks that take messages, in the order in which they began."""

    _role = "consumer"
    _most: ClassVar[int]
    """The most messages in one step."""

    _steps: Any

    def __init__(self, steps: Any, waits: Any) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()
        self._want: W | None = None  # of the step that is on its way, or was the last
        self._places = itertools.count(1)
        self._back: list[_Back] = []

    @abstractmethod
    def _take(self, most: int, want: W, waits: bool) -> Request:
        """Send a step that takes up to `most` messages; `waits`: where there are none, somebody waits for them."""

    def _messages(self, answer: Any) -> Sequence[M]:
        """Return the messages of an answer."""
        return self._steps.messages(answer) or []

    def _note(self, answer: Any) -> None:
        """Count and log what a step has taken."""
        self._steps.note(answer)

    def _return(self, step: int, messages: Sequence[M]) -> asyncio.Future[Any]:
        """Send a step that makes messages, oldest first, the first in line; the future gets its answer."""
        return self._steps.give_back_soon(messages)  # type: ignore[no-any-return]

    def _fate(self, messages: Sequence[M]) -> str:
        """Return what becomes of messages that cannot be given back."""
        return "they come back when their leases end"

    @property
    def _step(self) -> int:
        """The number of the step that was sent last. What steps with one number took goes back in one step."""
        return self._sent

    def give_back(self, messages: Sequence[M], order: Order | None = None) -> asyncio.Future[None]:
        """Make messages that nobody has seen the first in line again.

        Those of several operations go back together, in the order in which they were taken, and before the next step of
        this lane.

        Args:
            messages: The messages, oldest first.
            order: The `order` of the `Taken` that they belong to; None for messages of the latest step.

        Returns:
            What completes when they are back, or when that has failed: the log says so.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._back:
            loop.call_soon(self._send_back)
        order = order or self._order(self._want)
        if order.for_good:
            self._steps.counts.deleted_count -= len(messages)
        self._back.append(_Back(order, messages, done))
        return done

    def _send_back(self) -> None:
        back, self._back = sorted(self._back, key=lambda given: given.order), []
        by_step = [(step, list(given)) for step, given in itertools.groupby(back, key=lambda given: given.order.step)]
        for step, given in reversed(by_step):  # the oldest last: it will be the first in line
            messages = [message for one in given for message in one.messages]
            self._return(step, messages).add_done_callback(functools.partial(self._returned, given, messages))

    def _returned(self, given: Sequence[_Back], messages: Sequence[M], answer: asyncio.Future[Any]) -> None:
        if isinstance(error := answer.result(), Exception):
            logger.error(
                "%d messages of the queue %r, taken by a cancelled operation, could not be given back: %s: %s",
                len(messages), self._steps.name, self._fate(messages), error,
            )  # fmt: skip
        for one in given:
            set_result_once(one.done, None)

    def _order(self, want: W | None) -> Order:
        """Return the place of what a step for this has taken."""
        return Order(self._step, next(self._places), want is not None and not want.lease)

    def _send(self, first: Take[W]) -> None:
        if self._back:
            self._send_back()
        want = first.want
        wanted = self._carry(want, self._most)
        self._request = self._take(wanted, want, not all(entry.now for entry in self._entries))

    def _carry(self, want: W, most: int) -> int:
        """A step carries the first entries: as many as want this, for up to `most` messages. Returns for how many."""
        self._want, wanted = want, 0
        for entry in self._entries:
            if wanted >= most:
                break
            if entry.future.cancelled():
                continue
            if entry.want != want:
                break
            entry.state = CARRIED
            wanted += min(entry.most, most - wanted)
        return wanted

    def _begin(self, want: W, most: int) -> None:
        """A step that the lane has not sent is on its way now; `_answered` gets its answer."""
        self._moment = moment()
        self._sent += 1
        self._busy = True
        self._request = None
        self._carry(want, most)

    def _accept(self, answer: Any) -> None:
        self._note(answer)
        messages, want = self._messages(answer), self._want
        assert want is not None
        self._count(messages)
        if rest := self._hand_out(messages, want):
            # They were taken for cancelled callers: those that still wait do so until these have been given back.
            self._give_back_for(list(self._entries), rest)

    def _hand_out(self, messages: Sequence[M], want: W) -> Sequence[M]:
        """Give messages that were taken for this to the first entries. Returns those that nobody waits for any more."""
        begin = 0
        for entry in list(self._entries):
            if entry.state is WITHDRAWN or entry.future.cancelled():
                continue  # perhaps it joined after the step had left, and was cancelled in this turn of the loop
            if begin == len(messages) or entry.want != want:
                break
            share = Taken(messages[begin : begin + entry.most], self._order(want))
            begin += len(share)
            self._remove(entry)
            entry.succeed(share)
        return messages[begin:]

    def _count(self, messages: Sequence[M]) -> None:
        """Count what the latest step has acknowledged; `give_back` takes that back."""
        if self._want is not None and not self._want.lease:
            self._steps.counts.deleted_count += len(messages)

    def _give_back_for(self, entries: Sequence[Take[W]], messages: Sequence[M]) -> None:
        """Give back messages; those of the callers that were cancelled wait until they are back."""
        undone = self.give_back(messages)
        for entry in entries:
            if entry.state is WITHDRAWN:
                self._remove(entry)
                undone.add_done_callback(functools.partial(_end, entry.future))

    def _fail(self, in_flight: Sequence[Take[W]], error: Exception) -> None:
        if isinstance(error, DurabilityError) and (messages := self._messages(error.answer)):
            self._count(messages)
            self._give_back_for(in_flight, messages)
            in_flight = [entry for entry in in_flight if entry.state is not WITHDRAWN]
        super()._fail(in_flight, error)
        lost = [entry for entry in in_flight if entry.state is WITHDRAWN and not entry.want.lease]
        if lost and isinstance(error, OutcomeUnknownError):
            logger.error("a cancelled get of the queue %r may have lost messages: %s", self._steps.name, error)

    def _wait(self, wait: Wait) -> None:
        if wait.created:
            for entry in self._entries:
                entry.want = entry.want._replace(expected=True)
        super()._wait(wait)

    def _timeout(self, entry: Take[W]) -> Exception:
        return (self._blocked_by or EMPTY).error(self._steps.name)

    def _recover(self, entry: Take[W]) -> asyncio.Future[None] | None:
        if entry.future.cancelled() or entry.future.exception() is not None:
            return None
        taken = entry.future.result()
        return self.give_back(taken, taken.order)


def _end(outcome: asyncio.Future[Any], _: asyncio.Future[None]) -> None:
    """What was taken for a cancelled caller is back: it need not wait any longer."""
    set_result_once(outcome, [])


async def got(
    items: Items[T],
    messages: Sequence[bytes],
    give_back: Callable[[int, int | None], asyncio.Future[None]],
    patience: float,
) -> list[T]:
    """Decode what a get has taken, up to a message that cannot be decoded. All behind that is given back.

    Args:
        items: Decodes.
        messages: What was taken.
        give_back: Gives back what was taken from one place to another.
        patience: Seconds for which a cancelled caller waits for that.

    Raises:
        DecodeError: The first one cannot be decoded.
    """
    decoded, broken = items.decode_first(messages)
    kept = max(1, len(decoded))
    if kept < len(messages):
        try:
            await wait_for_answer(give_back(kept, None), None, patience)
        except asyncio.CancelledError:  # then the caller gets none of them
            await wait_shielded(give_back(0, kept), patience)
            raise
    note_taken(lambda: asyncio.wait((give_back(0, kept),)))
    if broken is not None:
        raise broken
    return decoded
