"""Exclusive consumers, and messages received by hand, whose processes crash, stand still or are blocked."""

from __future__ import annotations

import asyncio
import contextlib

from apressure import AsyncQueue, LeaseLostError, QueueClosedError
from tests.simulation.crowd import Crowd
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


async def taken_over(sim: Sim) -> None:
    """Consumers follow each other in the role, since each one has trouble; messages are handled in order."""
    sim.server.state.watch(NAME)
    lease, ledger, count = 1 + sim.seconds(2), Ledger(in_order=True), 5 + sim.draw(15)
    crowd = Crowd(sim, lease)

    async def consume() -> None:
        prefetch, by_hand = (None, 1, 3)[sim.draw(3)], sim.draw(3) == 0
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    if by_hand:
                        await receive(queue)
                    else:
                        async with queue.consumer("manual", lease=lease, prefetch=prefetch) as consumer:
                            async for delivery in consumer:
                                ledger.handed_out(delivery.raw, delivery.attempts)
                                await asyncio.sleep(sim.seconds((0, 0.1, 1, 2)[sim.draw(4)]))
                                await delivery.ack()
                                ledger.acked(delivery.raw, delivery.attempts)
                        return
                except LeaseLostError:
                    continue
                except QueueClosedError:
                    return

    async def receive(queue: AsyncQueue[bytes]) -> None:
        while True:
            delivery = await queue.receive(lease=lease)
            ledger.handed_out(delivery.raw, delivery.attempts)
            await asyncio.sleep(sim.seconds((0, 0.1, 1, 2)[sim.draw(4)]))
            await delivery.ack()
            ledger.acked(delivery.raw, delivery.attempts)

    async def put() -> None:
        async with connected() as client:
            queue, number = AsyncQueue[bytes](NAME, client=client), 0
            while number < count:
                # An exclusive producer has a lease, too.
                with contextlib.suppress(LeaseLostError):
                    async with queue.producer(close=False, exclusive=True, lease=lease) as producer:
                        while number < count:
                            message = b"%d" % number
                            ledger.perhaps.add(message)
                            number += 1
                            await producer.put(message)
                            ledger.put.add(message)
                            await asyncio.sleep(sim.seconds(0.5))
            await queue.close()

    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 5)[sim.draw(3)])
    crowd.add("producer", put)
    for _ in range(2 + sim.draw(8)):
        while len(crowd.alive()) < 2 + sim.draw(2):
            crowd.add("consumer", consume)
        await asyncio.sleep(sim.seconds(1.5))
        crowd.trouble(("crash", "crash", "stop", "stop", "block", "reset", "reset"), spared="producer")
    crowd.add("consumer", consume)
    await crowd.ended()
    ledger.check()
    await check_left(sim, jobs=None)


async def blocked(sim: Sim) -> None:
    """A handler that blocks the event loop keeps its lease, however long it takes."""
    sim.server.state.watch(NAME)
    # Time for the lease thread to connect, and to send a script.
    lease, shared = 1 + sim.seconds(2) + 20 * sim.latency, sim.draw(2) == 0
    began = {name: asyncio.Event() for name in ("one", "two")}
    handled: list[tuple[str, bytes, int]] = []

    async def consume(name: str) -> None:
        async with (
            AsyncQueue[bytes](NAME, url=URL) as queue,
            queue.consumer(lease=lease, shared=shared, prefetch=1) as consumer,
        ):
            began[name].set()
            async for item in consumer:
                handled.append((name, item, consumer.attempts))
                await asyncio.sleep(sim.seconds(1))

    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create()
        await queue.put_many([b"%d" % number for number in range(6)])
        await queue.close()
        tasks = [sim.process(name, lambda name=name: consume(name)) for name in ("one", "two")]  # type: ignore[misc]
        for name, task in zip(("one", "two"), tasks, strict=True):
            waiting = asyncio.create_task(began[name].wait())
            await asyncio.wait((waiting, task), return_when="FIRST_COMPLETED")
            await asyncio.sleep(sim.seconds(1))
            await sim.stop(name, lease + sim.seconds(10), threads=False)
        await asyncio.gather(*tasks)
    assert sorted(item for _, item, _ in handled) == [b"%d" % number for number in range(6)], handled
    assert all(attempts == 1 for _, _, attempts in handled), handled
    await check_left(sim, jobs=6)


def test_leases(seed: int) -> None:
    run(taken_over, seed)


def test_blocked_event_loops(seed: int) -> None:
    run(blocked, seed)
