"""The part of the contract that is about dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from apressure import Backoff, serve
from apressure.core.searching import DeadLetterPage, DeadLetterSearch
from apressure.dead_letters import DeadLetter, Failure
from apressure.exceptions import QueueClosedError, QueueFullError
from apressure.testing.contract.cancellation import cancelled
from apressure.testing.contract.interrupting import cancel, cancel_at_answer
from apressure.testing.contract.steps import ITEMS, Opener, comes_anew, drained, fails, in_time
from apressure.testing.memory.queue import MemoryQueue
from apressure.testing.memory.server import MemoryServer


class DeadLetterContract:
    """Dead letters tell why, are found, and chosen ones come back or are deleted."""

    async def test_dead_letters_tell_why(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=2)
        await queue.create()
        assert await queue.dead_letters() == []
        await queue.put_many(ITEMS[:3])
        for item in ITEMS[:2]:
            for error in (LookupError("first"), ValueError("it\nfailed") if item == b"0" else None):
                delivery = await in_time(queue.receive())
                assert delivery.raw == item
                await delivery.nack(error)
        assert await drained(queue) == ITEMS[2:3]
        first, second = await queue.dead_letters()
        assert [letter.item for letter in (first, second)] == ITEMS[:2]
        assert (first.attempts, first.error) == (2, Failure("ValueError", "it failed", 2))
        assert (second.attempts, second.error) == (2, Failure("LookupError", "first", 1))
        assert abs(first.when - time.time()) < 3600
        assert await queue.dead_letters(limit=1) == [first]
        await fails(ValueError, queue.dead_letters(limit=0))

    async def test_what_a_block_and_a_handler_raise_is_why(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        await queue.put_many(ITEMS[:2])

        async def fail() -> None:
            async with queue.consumer() as consumer:
                async for item in consumer:
                    raise LookupError(item.decode())

        await fails(LookupError, fail())

        async def handle(item: bytes) -> None:
            raise ValueError(item.decode())

        await queue.close()
        await in_time(serve(handle, queue, retry=Backoff(0.01), signals=()))
        errors = [letter.error for letter in await queue.dead_letters()]
        assert errors == [Failure("LookupError", "0", 1), Failure("ValueError", "1", 1)]

    async def test_chosen_dead_letters_come_back(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        assert (await queue.requeue(ids=["none"])).not_found == ("none",)
        await queue.put_many(ITEMS[:3])
        for _ in range(3):
            await (await in_time(queue.receive())).nack("broken")
        assert await drained(queue) == []
        first, second, third = await queue.dead_letters()
        done = await queue.requeue(ids=[third.id, "none", first.id, third.id])
        assert (done, done.not_found) == (2, ("none",))
        assert await queue.dead_letters() == [second]
        assert await drained(await open_queue()) == [b"0", b"2"]
        assert (await queue.requeue(ids=[third.id])).not_found == (third.id,)
        await fails(ValueError, queue.requeue(1, ids=[second.id]))
        await fails(TypeError, queue.requeue(ids=second.id))
        assert await queue.requeue() == 1
        assert await queue.dead_letters() == []

    async def test_dead_letters_are_found_in_steps(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        assert await queue.find_dead_letters() == DeadLetterPage((), 0, 0, 0)
        await die(queue, [b"pear 1", b"plum", b"pear 2"], [ValueError("Too Large"), KeyError("x"), ValueError("large")])
        letters = await queue.dead_letters()
        whole = await queue.find_dead_letters()
        assert (list(whole.letters), whole.looked, whole.total, whole.cursor) == (letters, 3, 3, None)

        async def found(look: int = 500, **what: Any) -> list[bytes]:
            items, cursor = [], None
            for _ in range(4):
                page = await queue.find_dead_letters(DeadLetterSearch(**what), cursor=cursor, look=look)
                items += [letter.item for letter in page.letters]
                if (cursor := page.cursor) is None:
                    return items
            raise AssertionError("the search did not end")

        first, second, third = letters
        for look in (1, 2, 500):
            assert await found(look) == [b"pear 1", b"plum", b"pear 2"]
            assert await found(look, error="LARGE") == [b"pear 1", b"pear 2"]
            assert await found(look, text="pear") == [b"pear 1", b"pear 2"]
            assert await found(look, text="PEAR") == []
            assert await found(look, ids=[third.id, second.id, "none"], error="large") == [b"pear 2"]
        begun, ended = (datetime.fromtimestamp(one.when, UTC) for one in (first, third))
        assert await found(since=begun) == [b"pear 1", b"plum", b"pear 2"]
        assert await found(until=begun) == await found(since=ended + timedelta(hours=1)) == []
        assert await found(until=ended + timedelta(hours=1), text="plum") == [b"plum"]
        assert (await queue.find_dead_letters(cursor="dead_letters-oldest-99")).looked == 0

    async def test_a_search_goes_on_behind_those_that_are_gone(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        await die(queue, ITEMS[:4], ["odd", "even", "odd", "even"])
        page = await queue.find_dead_letters(DeadLetterSearch(error="odd"), look=2)
        assert await queue.discard(page.letters) == 1
        page = await queue.find_dead_letters(cursor=page.cursor_without(1))
        assert [letter.item for letter in page.letters] == ITEMS[2:4]

    async def test_dead_letters_are_deleted(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        nothing = await queue.discard(["none"])
        assert (nothing, nothing.not_found) == (0, ("none",))
        await die(queue, ITEMS[:4], ["broken"] * 4)
        first, second, third, fourth = await queue.dead_letters()
        done = await queue.discard([third.id, "none", first])
        assert (done, done.not_found) == (2, ("none",))
        assert await queue.dead_letters() == [second, fourth]
        assert set((await queue.discard([first, third.id])).not_found) == {first.id, third.id}
        assert set((await queue.requeue(ids=[first, third.id])).not_found) == {first.id, third.id}
        assert await queue.requeue(ids=[second]) == 1
        assert (await queue.discard([second])).not_found == (second.id,)
        assert await drained(queue) == [second.item]
        await queue.close()
        done = await queue.discard([fourth, fourth.id, fourth])
        assert (done, done.not_found) == (1, ())
        done = await queue.discard([fourth.id, fourth, fourth])
        assert (done, done.not_found) == (0, (fourth.id,))
        assert await queue.dead_letters() == []

    async def test_two_that_move_the_same_dead_letters_move_each_once(self, open_queue: Opener) -> None:
        queue, other = await open_queue(max_attempts=1), await open_queue(max_attempts=1)
        await queue.create()
        await die(queue, ITEMS[:8], ["broken"] * 8)
        letters = await queue.dead_letters()
        outcomes = await asyncio.gather(
            queue.requeue(ids=letters), other.requeue(ids=[letter.id for letter in letters]), other.discard(letters[:3])
        )
        assert sum(outcomes) == 8
        assert sum(len(outcome.not_found) for outcome in outcomes) == 11
        assert await queue.dead_letters() == []
        assert len(await drained(queue)) == 8 - outcomes[2]
        assert await queue.qsize() == 0


class MovedLetterContract:
    """Dead letters move into another queue of any kind."""

    async def test_dead_letters_move_into_another_queue_and_from_one(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        await die(queue, ITEMS[:4], ["broken"] * 4)
        first, second, third, fourth = await queue.dead_letters()
        async with MemoryQueue("other", server=MemoryServer(), max_attempts=1) as other:
            await other.create(bound=3)
            done = await queue.move_dead_letters(other, [third, first.id, "none"])
            assert (done, done.not_found) == (2, ("none",))
            assert sorted(await drained(other)) == [ITEMS[0], ITEMS[2]]
            assert await queue.dead_letters() == [second, fourth]
            again = await queue.move_dead_letters(other, [third.id, first])
            assert (again, again.not_found) == (0, (third.id, first.id))
            assert await other.qsize() == 0
            await other.put_many(ITEMS[5:7])
            error: Any = await fails(QueueFullError, queue.move_dead_letters(other, [second, fourth], timeout=0.05))
            assert error.accepted == 1
            assert await queue.dead_letters() == [fourth]
            assert await drained(other) == [*ITEMS[5:7], ITEMS[1]]
            await die(other, ITEMS[7:9], ["broken"] * 2)
            assert await other.move_dead_letters(queue, await other.dead_letters()) == 2
            assert await other.dead_letters() == []
            assert await drained(queue) == ITEMS[7:9]
            await fails(ValueError, queue.move_dead_letters(queue, [fourth]))
            await fails(TypeError, queue.move_dead_letters("other", [fourth]))
            await queue.close()
            await die(other, ITEMS[9:], ["broken"])
            letters = await other.dead_letters()
            await fails(QueueClosedError, other.move_dead_letters(queue, letters))
            assert await other.dead_letters() == letters
            assert await queue.move_dead_letters(other, [fourth]) == 1

    async def test_a_cancelled_move_leaves_each_here_or_there_or_in_both(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        for number, how in itertools.product(range(100), (cancel, cancel_at_answer)):
            await die(queue, ITEMS[:2], ["broken"] * 2)
            async with MemoryQueue("other", server=MemoryServer()) as other:
                await other.create()
                letters = await queue.dead_letters()
                reached, moved = await cancelled(queue.move_dead_letters(other, letters), number, how)
                assert moved == (None if reached else 2)
                there = await drained(other)
            here = [one.raw for one in await queue.dead_letters()]
            assert {*here, *there} == {*ITEMS[:2]}
            assert len(here) + len(there) <= 3  # the one on its way may be in both
            await queue.discard(await queue.dead_letters())
            if not reached:
                return


class AddedLetterContract:
    """Dead letters of another queue are added with their reasons."""

    async def test_added_dead_letters_are_what_they_were(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=1)
        await queue.put(b"full")
        known = [letter(b"%d" % number, number + 1, Failure("ValueError", "bad", 1)) for number in range(3)]
        assert await queue.add_dead_letters([*known, letter(b"silent", 2, None)]) == 4
        assert await queue.add_dead_letters([letter(b"0", 9, Failure("", "again", 9))]) == 1
        found = await queue.dead_letters()
        assert [told(one) for one in found[:4]] == [told(one) for one in (*known, letter(b"silent", 2, None))]
        assert (found[4].raw, found[4].attempts, found[4].error) == (b"0", 9, Failure("", "again", 9))
        assert await queue.qsize() == 1
        assert await drained(queue) == [b"full"]
        assert await queue.requeue(ids=[found[1].id]) == 1
        assert [one.raw for one in await queue.dead_letters()] == [b"0", b"2", b"silent", b"0"]
        await comes_anew(queue, b"1")

    async def test_one_of_which_nothing_is_known_is_added(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.add_dead_letters([letter(b"?", None, None)])
        (found,) = await queue.dead_letters()
        assert (found.raw, found.attempts or 0, found.error) == (b"?", 0, None)

    async def test_the_latest_time_is_kept_with_the_rest(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        late = dataclasses.replace(letter(b"late", 3, Failure("ValueError", "bad", 2)), when=10.0**10 - 1)
        await queue.add_dead_letters([late])
        assert [told(one) for one in await queue.dead_letters()] == [told(late)]

    async def test_a_closed_queue_takes_dead_letters(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.close()
        assert await queue.add_dead_letters([letter(b"late", 1, None)]) == 1
        assert [one.raw for one in await queue.dead_letters()] == [b"late"]

    async def test_an_invalid_dead_letter_keeps_the_others_out(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        good = letter(b"good", 1, None)
        changes: list[dict[str, Any]] = [
            {"attempts": -1}, {"attempts": 10**9}, {"when": -1.0}, {"when": 1e10}, {"when": math.nan},
            {"id": ""}, {"id": "\ud800"}, {"id": "i" * 1025},
        ]  # fmt: skip
        for change in changes:
            bad = dataclasses.replace(good, **change)
            await fails(ValueError, queue.add_dead_letters([*[good] * 1000, bad]))
        for wrong in (b"bad", dataclasses.replace(good, id=cast("str", 5))):
            await fails(TypeError, queue.add_dead_letters([*[good] * 1000, wrong]))
        assert await queue.dead_letters() == []

    async def test_more_dead_letters_than_one_step_takes_are_added_in_order(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        many = [letter(b"%d" % number, 1, None) for number in range(1200)]
        assert await queue.add_dead_letters(many) == 1200
        assert [one.raw for one in await queue.dead_letters(None)] == [one.raw for one in many]


def letter(raw: bytes, attempts: int | None, error: Failure | None) -> DeadLetter[bytes]:
    """Return a dead letter of some queue."""
    return DeadLetter(f"some-{raw.decode()}", raw, attempts, error, 1700000000.25 if attempts else None, bytes)


def told(found: DeadLetter[bytes]) -> tuple[object, ...]:
    """Return what a dead letter tells, but for its id."""
    return found.raw, found.attempts, found.error, found.when


async def die(queue: Any, items: list[bytes], errors: Sequence[BaseException | str]) -> None:
    """Put items, and have each become a dead letter for the reason beside it."""
    await queue.put_many(items)
    for error in errors:
        await (await in_time(queue.receive())).nack(error)
    assert await drained(queue) == []
