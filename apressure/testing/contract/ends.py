"""The part of the contract that is about the end of a queue, at every await of every operation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from apressure.exceptions import (
    LeaseLostError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
)
from apressure.testing.contract.interrupting import Interrupted, result_of
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, drained, fails, in_time
from apressure.testing.contract.verbs import VALID, call

_WAITS: Final = 0.2
"""Seconds after which an operation that has not ended waits for the queue."""

_PUTS: Final = ("put", "put_nowait", "put_many")
_TAKES: Final = ("get", "get_many", "receive", "receive_many")

Operation = Callable[[Any], Awaitable[Any]]


class Moment(NamedTuple):
    """What came of an operation whose queue was ended at one of its awaits.

    Attributes:
        owner: Another object of the queue.
        outcome: The operation's result, or its error.
        ended: The queue was ended. Otherwise the operation was quicker, or has a role that keeps it from being deleted.
    """

    owner: Any
    outcome: Any
    ended: bool


class EndContract:
    """Whenever a queue is closed or deleted, each operation on it says so, or has been carried out."""

    async def test_closed_during_a_put(self, open_queue: Opener) -> None:
        for verb in _PUTS:
            async for moment in _moments(open_queue, _verb(verb), "close"):
                refused = isinstance(moment.outcome, QueueClosedError)
                assert not isinstance(moment.outcome, BaseException) or (refused and moment.ended), moment
                assert await drained(moment.owner) == ITEMS[:3] + [b"1"][refused:]

    async def test_closed_while_a_put_waits_for_room(self, open_queue: Opener) -> None:
        for verb in ("put", "put_many"):
            async for moment in _moments(open_queue, _verb(verb), "close", bound=3):
                assert isinstance(moment.outcome, QueueClosedError), moment
                assert await drained(moment.owner) == ITEMS[:3]

    async def test_closed_during_a_get_or_a_receive(self, open_queue: Opener) -> None:
        for verb in _TAKES:
            async for moment in _moments(open_queue, _verb(verb), "close"):
                assert not isinstance(moment.outcome, BaseException), moment
                assert await _settled(moment.outcome) + await drained(moment.owner) == ITEMS[:3]

    async def test_closed_while_a_get_or_a_receive_waits(self, open_queue: Opener) -> None:
        for verb in ("get", "receive"):
            async for moment in _moments(open_queue, _verb(verb), "close", items=0):
                assert isinstance(moment.outcome, QueueClosedError), moment

    async def test_closed_during_a_loop(self, open_queue: Opener) -> None:
        for loop in (_consume, _iterate):
            async for moment in _moments(open_queue, loop, "close"):
                assert moment.outcome == ITEMS[:3], moment
                assert await drained(moment.owner) == []

    async def test_closed_while_others_wait_for_that(self, open_queue: Opener) -> None:
        async for moment in _moments(open_queue, _verb("wait_closed"), "close"):
            assert moment.outcome is None, moment

    async def test_closed_and_deleted_before_somebody_waits_for_that(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await queue.create()
        await queue.close()
        await in_time(queue.wait_closed())
        await owner.delete(timeout=PATIENCE)
        await fails(QueueDoesNotExistError, queue.wait_closed(timeout=PATIENCE))

    async def test_deleted_during_a_put(self, open_queue: Opener) -> None:
        for verb in _PUTS:
            async for moment in _moments(open_queue, _verb(verb), "delete"):
                _check_deleted(moment)
                assert await moment.owner.exists() is not moment.ended

    async def test_deleted_while_an_operation_waits(self, open_queue: Opener) -> None:
        for verb, items in (("put", 3), ("get", 0), ("receive", 0)):
            async for moment in _moments(open_queue, _verb(verb), "delete", bound=3, items=items):
                assert isinstance(moment.outcome, QueueDoesNotExistError), moment

    async def test_deleted_while_others_wait_for_the_end(self, open_queue: Opener) -> None:
        async for moment in _moments(open_queue, _verb("wait_closed"), "delete"):
            assert isinstance(moment.outcome, QueueDoesNotExistError), moment

    async def test_deleted_during_a_get_or_a_receive(self, open_queue: Opener) -> None:
        for verb in _TAKES:
            async for moment in _moments(open_queue, _verb(verb), "delete"):
                _check_deleted(moment)

    async def test_deleted_while_deliveries_are_settled(self, open_queue: Opener) -> None:
        for how in ("ack", "nack"):

            async def settle(queue: Any, how: str = how) -> None:
                await getattr(await queue.receive(), how)()

            async for moment in _moments(open_queue, settle, "delete"):
                _check_deleted(moment, PressureError)  # of tasks, TaskDoesNotExistError

    async def test_deleted_during_a_loop(self, open_queue: Opener) -> None:
        for loop in (_consume, _iterate):
            async for moment in _moments(open_queue, loop, "delete"):
                _check_deleted(moment, LeaseLostError)


async def _moments(
    open_queue: Opener, operation: Operation, end: str, *, bound: int = 0, items: int = 3
) -> AsyncIterator[Moment]:
    """Close or delete a new queue at each await of an operation on it, and once it waits."""
    for number in itertools.count():
        queue, owner = await open_queue(), await open_queue()
        await queue.create(bound)
        await owner.put_many(ITEMS[:items])
        ending: list[asyncio.Task[bool]] = []

        async def act(_: object = None, owner: Any = owner, ending: list[asyncio.Task[bool]] = ending) -> None:
            if not ending:
                ending.append(asyncio.ensure_future(_end(owner, end)))
            await asyncio.wait(ending)

        interrupted = Interrupted(operation(queue), number, act)
        task = asyncio.ensure_future(result_of(interrupted))
        await asyncio.wait((task,), timeout=_WAITS)
        if not task.done():
            await act()
            if not ending[0].result():
                task.cancel()
        outcome = await in_time(task)
        ended = bool(ending) and ending[0].result()
        yield Moment(owner, outcome, ended)
        await queue.aclose()
        with contextlib.suppress(QueueDoesNotExistError):
            await owner.delete(timeout=PATIENCE)
        await owner.aclose()
        if not interrupted.reached:
            return


async def _end(owner: Any, how: str) -> bool:
    """Close or delete a queue. False if a role keeps it: that of an `AsyncQueue`'s consumer."""
    try:
        await getattr(owner, how)(timeout=0.05)
    except QueueInUseError:
        return False
    return True


def _verb(verb: str) -> Operation:
    return lambda queue: call(queue, verb, **VALID.get(verb, {}))


async def _consume(queue: Any) -> list[bytes]:
    async with queue.consumer() as consumer:
        return [item async for item in consumer]


async def _iterate(queue: Any) -> list[bytes]:
    return [item async for item in queue]


async def _settled(outcome: Any) -> list[bytes]:
    """Return the items that an operation has taken; deliveries are acknowledged."""
    taken = outcome if isinstance(outcome, list) else [outcome]
    for one in taken:
        if not isinstance(one, bytes):
            await one.ack()
    return [one if isinstance(one, bytes) else one.raw for one in taken]


def _check_deleted(moment: Moment, *others: type[BaseException]) -> None:
    if isinstance(moment.outcome, BaseException):
        # What was slow, and has the role that keeps the queue, was cancelled.
        slow = () if moment.ended else (asyncio.CancelledError,)
        assert isinstance(moment.outcome, (QueueDoesNotExistError, *slow, *others)), moment
