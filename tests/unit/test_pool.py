"""Which queue gets the next handler, where several share them."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure.service.pool import Member, Pool, all_of


class Shared:
    """A pool whose members always have as many messages as they like."""

    def __init__(self, places: int, count: int, weights: Sequence[float] | None = None, ageing: float | None = None):
        self.pool = Pool(places, count, weights, ageing)
        self.held = [0] * count
        for number, member in enumerate(self.pool.members):
            member.taken = lambda number=number: self.held[number]  # type: ignore[misc]
        self.waiting: dict[int, asyncio.Task[None]] = {}

    async def wants(self, number: int) -> None:
        self.held[number] += 1  # as the service counts a message that it has received
        self.waiting[number] = asyncio.ensure_future(self.pool.members[number].turn())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def got(self) -> list[int]:
        """The members that have got a place since the last call."""
        found = [number for number, task in self.waiting.items() if task.done()]
        for number in found:
            del self.waiting[number]
        return found

    async def ends(self, number: int) -> None:
        self.held[number] -= 1
        if number not in self.waiting:
            self.pool.members[number].idle()
        self.pool.changed()
        await asyncio.sleep(0)


async def sequence(shared: Shared, members: Sequence[int], most: int) -> list[int]:
    """Who gets the only place, one after the other, while all of these always want it."""
    for number in members:
        await shared.wants(number)
    order: list[int] = []
    while len(order) < most:
        (number,) = shared.got()
        order.append(number)
        await shared.wants(number)
        await shared.ends(number)
    for task in shared.waiting.values():
        task.cancel()
    return order


async def test_in_order_the_first_that_has_a_message_gets_it() -> None:
    shared = Shared(1, 3)
    for number in (2, 1, 0):
        await shared.wants(number)
    assert shared.got() == [2], "nobody else was there"
    await shared.ends(2)
    assert shared.got() == [0]
    await shared.wants(2)
    await shared.ends(0)
    assert shared.got() == [1]
    await shared.ends(1)
    assert shared.got() == [2]


async def test_weights_mix_the_queues() -> None:
    assert await sequence(Shared(1, 3, (6, 3, 1)), (0, 1, 2), 11) == [0, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0]


@given(weights=st.lists(st.integers(1, 20), min_size=2, max_size=5))
def test_the_proportions_are_exact_over_each_round(weights: list[int]) -> None:
    order = asyncio.run(sequence(Shared(1, len(weights), weights), range(len(weights)), 1 + 2 * sum(weights)))
    # The first one had no rival.
    counts = Counter(order[1:])
    for number, weight in enumerate(weights):
        assert abs(counts[number] - 2 * weight) <= 1


async def test_a_queue_that_has_nothing_leaves_its_share_to_the_others() -> None:
    assert await sequence(Shared(1, 3, (6, 3, 1)), (1, 2), 9) == [1, 1, 1, 2, 1, 1, 1, 2, 1]


async def test_what_has_waited_long_enough_goes_first() -> None:
    shared = Shared(1, 3, ageing=0.0)
    for number in (0, 2, 1):
        await shared.wants(number)
    assert shared.got() == [0]
    await shared.wants(0)
    order = []
    for number in (0, 2, 1):
        await shared.ends(number)
        order += shared.got()
    assert order == [2, 1, 0], "in the order in which they came"


async def test_no_more_than_there_are_places_and_none_is_lost_by_a_cancellation() -> None:
    shared = Shared(2, 3)
    for number in (0, 1, 2):
        await shared.wants(number)
    shared.pool.members[0].idle()
    await asyncio.sleep(0)
    assert shared.got() == [0, 1]
    shared.waiting[2].cancel()
    await asyncio.sleep(0)
    shared.held[2] -= 1
    del shared.waiting[2]
    await shared.wants(0)
    assert shared.got() == []
    await shared.ends(1)
    assert shared.got() == [0]
    assert [member.held for member in shared.pool.members] == [2, 0, 0]


async def test_a_place_is_kept_for_the_next_message_of_an_earlier_queue() -> None:
    shared = Shared(2, 3)
    for number in (0, 1, 2):
        await shared.wants(number)
    assert shared.got() == [0], "its next message may come first"
    await shared.wants(0)
    assert shared.got() == [0]
    await shared.ends(0)
    assert shared.got() == [1], "it has told that there is none"
    await shared.ends(1)
    await asyncio.sleep(0)
    assert shared.got() == [2]


async def test_a_queue_that_says_nothing_does_not_keep_the_others_waiting() -> None:
    shared = Shared(2, 2)
    for number in (0, 1):
        await shared.wants(number)
    assert shared.got() == [0]
    async with asyncio.timeout(30):
        await shared.waiting[1]


async def test_services_end_together_when_one_fails() -> None:
    stopped, told = asyncio.Event(), []

    async def service() -> str:
        await stopped.wait()
        told.append("drained")
        return "served"

    async def failing() -> str:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await all_of([service(), failing(), service()], stopped.set)
    assert told == ["drained", "drained"]
    assert await all_of([service(), service()], lambda: told.append("never")) == ["served", "served"]
    assert "never" not in told
    stopped.clear()
    running = asyncio.ensure_future(all_of([service(), service()], stopped.set))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_services_that_fail_together_are_all_seen(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(number: int) -> None:
        raise RuntimeError(f"gone {number}")

    gc.collect()
    caplog.clear()  # of what other tests left
    with pytest.raises(RuntimeError, match="gone 1"):
        await all_of([failing(1), failing(2)], int)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_second_cancellation_waits_for_the_services_too() -> None:
    ended = []

    async def service() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            ended.append("given back")

    running = asyncio.ensure_future(all_of([service(), service()], int))
    for _ in range(2):
        await asyncio.sleep(0.001)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["given back", "given back"]


def test_a_member_alone_has_nothing() -> None:
    assert Member(Pool(1, 0, None, None), None).held == 0
