"""The part of the contract that is about cancellations, at every await of every verb."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueDoesNotExistError, QueueEmptyError, UnsupportedError
from apressure.testing.contract.interrupting import Act, Interrupted, cancel, cancel_at_answer, result_of
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, drained, fails, in_time
from apressure.testing.contract.verbs import LOOKS, VERBS, call

Operation = Callable[[Any], Awaitable[Any]]
"""Begins an operation on a queue with three items."""

Check = Callable[[Any, Any], Awaitable[None]]
"""Looks at the queue afterwards, with the result; None if the operation was cancelled."""


class CancellationContract:
    """Cancelled at any of its awaits, an operation leaves behind what its docstring says."""

    async def test_cancelled_puts_have_put_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, put: Any) -> None:
            found = await drained(queue)
            assert found[:3] == ITEMS[:3]
            assert found[3:] in ([b"1"], [] if put is None else [b"1"])

        for verb in ("put", "put_nowait", "put_many"):
            await everywhere(open_queue, lambda queue, verb=verb: call(queue, verb), check)  # type: ignore[misc]

    async def test_a_cancelled_put_many_has_put_the_first_items(self, open_queue: Opener) -> None:
        async def items() -> Any:
            for item in ITEMS[3:6]:
                yield item

        async def check(queue: Any, put: Any) -> None:
            found = await drained(queue)
            assert found == ITEMS[: len(found)]
            assert len(found) == 6 if put is not None else 3 <= len(found) <= 6

        await everywhere(open_queue, lambda queue: queue.put_many(ITEMS[3:6]), check)
        await everywhere(open_queue, lambda queue: queue.put_many(items()), check)

    async def test_cancelled_gets_have_taken_nothing(self, open_queue: Opener) -> None:
        asked: list[Any] = []

        async def check(queue: Any, got: Any) -> None:
            got = [] if got is None else got if isinstance(got, list) else [got]
            assert (await asked.pop().statistics()).deleted_count == len(got)
            assert got + await drained(queue) == ITEMS[:3]

        async def get(queue: Any, verb: str, more: dict[str, int]) -> Any:
            asked.append(queue)
            return await call(queue, verb, **more)

        for verb, more in (("get", {}), ("get_nowait", {}), ("get_many", {"max_items": 2})):
            await everywhere(open_queue, lambda queue, verb=verb, more=more: get(queue, verb, more), check)  # type: ignore[misc]

    async def test_cancelled_receives_have_taken_nothing(self, open_queue: Opener) -> None:
        async def check(queue: Any, got: Any) -> None:
            deliveries = [] if got is None else got if isinstance(got, list) else [got]
            for delivery in deliveries:
                await delivery.ack()
            assert [delivery.raw for delivery in deliveries] + await drained(queue) == ITEMS[:3]

        for verb, more in (("receive", {}), ("receive_many", {"max_items": 2})):
            await everywhere(open_queue, lambda queue, verb=verb, more=more: call(queue, verb, **more), check)  # type: ignore[misc]

    async def test_a_cancelled_consumer_gives_back_what_it_has(self, open_queue: Opener) -> None:
        consumed: list[bytes] = []

        async def consume(queue: Any) -> None:
            consumed.clear()
            async with queue.consumer() as consumer:
                async for item in consumer:
                    consumed.append(item)
                    if len(consumed) == 2:
                        break

        async def check(queue: Any, _: Any) -> None:
            found = await drained(queue)
            assert found == ITEMS[3 - len(found) : 3]
            assert len(consumed) + len(found) >= 3

        await everywhere(open_queue, consume, check)

    async def test_a_cancelled_acknowledgement_was_made_or_not(self, open_queue: Opener) -> None:
        for how, most in (("ack", 1), ("nack", 1), ("extend", 1)):
            least = 0 if how == "ack" else 1

            async def settle(queue: Any, how: str = how) -> None:
                delivery = await queue.receive()
                await (delivery.extend(20) if how == "extend" else getattr(delivery, how)())

            async def check(queue: Any, _: Any, least: int = least, most: int = most) -> None:
                seen = await queue.statistics()
                assert 2 + least <= seen.length + seen.in_flight <= 2 + most

            await everywhere(open_queue, settle, check)

    async def test_cancelled_looks_change_nothing(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            assert await drained(queue) == ITEMS[:3]

        async def look(queue: Any, verb: str) -> None:
            with contextlib.suppress(UnsupportedError):
                await call(queue, verb)

        for verb in LOOKS:
            await everywhere(open_queue, lambda queue, verb=verb: look(queue, verb), check, closed=True)  # type: ignore[misc]

    async def test_a_cancelled_close_has_closed_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            assert await queue.closed() in (True, False)
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, lambda queue: queue.close(), check)

    async def test_a_cancelled_pause_has_paused_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            assert await queue.resume() in (True, False)
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, lambda queue: queue.pause(), check)
        await everywhere(open_queue, lambda queue: queue.resume(), check)

    async def test_a_cancelled_create_can_be_repeated(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            await queue.create(bound=5, exist_ok=True)
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, lambda queue: queue.create(exist_ok=True), check)

        async def recreate(queue: Any) -> None:
            await queue.delete(timeout=PATIENCE)
            await queue.create(bound=5)

        async def check_bound(queue: Any, _: Any) -> None:
            await queue.create(bound=5, exist_ok=True)
            assert await queue.bound() in (5, 0)

        await everywhere(open_queue, recreate, check_bound)

    async def test_a_cancelled_delete_has_deleted_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            if await queue.exists():
                await queue.delete(timeout=PATIENCE)
            assert not await queue.exists()

        await everywhere(open_queue, lambda queue: queue.delete(timeout=PATIENCE), check)

    async def test_a_cancelled_purge_has_deleted_the_oldest(self, open_queue: Opener) -> None:
        async def check(queue: Any, purged: Any) -> None:
            found = await drained(queue)
            assert found == ITEMS[3 - len(found) : 3]
            assert purged is None or (purged, found) == (3, [])

        await everywhere(open_queue, lambda queue: queue.purge(), check)

    async def test_a_cancelled_requeue_leaves_each_here_or_there(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        for number, how in itertools.product(range(100), (cancel, cancel_at_answer)):
            await queue.put(b"0")
            await (await in_time(queue.receive())).nack()
            await fails(QueueEmptyError, queue.receive(timeout=0))
            reached, moved = await cancelled(queue.requeue(), number, how)
            assert moved == (None if reached else 1)
            letters = [letter.item for letter in await queue.dead_letters()]
            assert letters + await drained(queue) == [b"0"]
            await queue.requeue()
            await drained(queue)
            if not reached:
                return

    async def test_a_cancelled_add_of_dead_letters_adds_the_first_of_them(self, open_queue: Opener) -> None:
        letters = [DeadLetter(f"dead-{item!r}", item, 1, None, None, bytes) for item in ITEMS[:2]]

        async def add(queue: Any) -> Any:
            with contextlib.suppress(UnsupportedError):
                return await queue.add_dead_letters(letters)

        async def check(owner: Any, result: Any) -> None:
            found = [letter.raw for letter in await owner.dead_letters()]
            assert found == ITEMS[: len(found)]
            assert len(found) == 2 or result is None
            assert await owner.requeue() == len(found)
            assert await drained(owner) == [*ITEMS[:3], *found]

        await everywhere(open_queue, add, check)

    async def test_a_cancelled_discard_has_deleted_each_or_not(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        for number, how in itertools.product(range(100), (cancel, cancel_at_answer)):
            await queue.put_many(ITEMS[:2])
            for _ in ITEMS[:2]:
                await (await in_time(queue.receive())).nack()
            await fails(QueueEmptyError, queue.receive(timeout=0))
            first, second = await queue.dead_letters()
            reached, deleted = await cancelled(queue.discard([second.id]), number, how)
            assert deleted == (None if reached else 1)
            left = await queue.dead_letters()
            assert left in ([first], [first, second][: 2 if reached else 1])
            assert await queue.discard(left) == len(left)
            if not reached:
                return

    async def test_a_cancelled_promote_leaves_each_delayed_or_due(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for number, how in itertools.product(range(100), (cancel, cancel_at_answer)):
            await queue.put_many(ITEMS[:2], delay=600)
            reached, promoted = await cancelled(queue.promote(), number, how)
            assert promoted == (None if reached else 2)
            due = await drained(queue)
            assert await queue.promote() == 2 - len(due)
            assert due + await drained(queue) == ITEMS[:2]
            if not reached:
                return

    def test_each_verb_is_cancelled(self) -> None:
        ours = {
            "put", "put_nowait", "put_many", "get", "get_nowait", "get_many", "receive", "receive_many", "create",
            "close", "delete", "purge", "pause", "resume", "requeue", "discard", "add_dead_letters", "set_bound",
            "promote", "move_dead_letters", *LOOKS,
        }  # fmt: skip
        assert ours == {verb for verb, arguments in VERBS.items() if "deadline" in arguments}


async def everywhere(open_queue: Opener, operation: Operation, check: Check, closed: bool = False) -> None:
    """Cancel an operation at each of its awaits, on a new queue with three items, and look at what it leaves.

    `closed`: the queue was closed before.
    """
    for how in (cancel, cancel_at_answer):
        for number in itertools.count():
            queue, owner = await open_queue(), await open_queue()
            await owner.create()
            await owner.put_many(ITEMS[:3])
            if closed:
                await owner.close()
            reached, result = await cancelled(operation(queue), number, how)
            await in_time(check(owner, result))
            await queue.aclose()
            with contextlib.suppress(QueueDoesNotExistError):
                await owner.delete(timeout=PATIENCE)
            await owner.aclose()
            if not reached:
                break


async def cancelled(operation: Awaitable[Any], number: int, how: Act) -> tuple[bool, Any]:
    """Cancel an operation at one of its awaits. Returns whether it has so many, and otherwise its result."""
    interrupted = Interrupted(operation, number, how)
    outcome = await in_time(asyncio.ensure_future(result_of(interrupted)))
    if interrupted.reached:
        assert isinstance(outcome, asyncio.CancelledError), outcome
        return True, None
    if isinstance(outcome, BaseException):
        raise outcome
    return False, outcome
