"""Stages of a pipeline crash, stand still, are cut off and are cancelled: each result is there once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from apressure import AsyncQueue, LeaseLostError, Many, QueueClosedError, pipe
from tests.simulation.ledger import check_left
from tests.simulation.world import URL, Sim, connected, run

SOURCE, DESTINATION = "raw", "done"


def results_of(item: bytes) -> list[bytes]:
    """What the transform makes of an item: none, one or two results."""
    number = int(item)
    return [] if number % 7 == 3 else [item, item + b"b"] if number % 5 == 0 else [item]


async def exactly_once(sim: Sim) -> None:
    sim.names = (SOURCE.encode(), DESTINATION.encode())
    items = [b"%d" % number for number in range(5 + sim.draw(25))]
    batch = (None, None, 3)[sim.draw(3)]
    options: dict[str, Any] = {
        "batch": batch, "concurrency": 1 + sim.draw(4), "close": True, "exactly_once": True,
        "retry_delay": 0.1, "lease": 1 + sim.seconds(2),
    }  # fmt: skip
    arrived: list[bytes] = []
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def transform(found: Any) -> Any:
        await asyncio.sleep(sim.seconds((0, 0.1, 1, 2)[sim.draw(4)]))
        if sim.draw(20) == 0:
            raise ValueError("as it happens")
        return Many([result for item in (found if batch else [found]) for result in results_of(item)])

    async def stage() -> None:
        while True:
            async with connected() as client:
                source, end = (AsyncQueue[bytes](name, client=client) for name in (SOURCE, DESTINATION))
                with contextlib.suppress(LeaseLostError):
                    await pipe(source, transform, end, **options)
                    return

    def begin() -> None:
        name = f"stage {len(tasks) + 1}"
        tasks[name] = sim.process(name, stage)

    async def feed() -> None:
        async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
            for item in items:
                await queue.put(item)
                await asyncio.sleep(sim.seconds(0.5))
            await queue.close()

    async def read() -> None:
        async with AsyncQueue[bytes](DESTINATION, url=URL) as queue:
            async for item in queue:
                arrived.append(item)
                await asyncio.sleep(sim.seconds(0.2))

    async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
        await queue.create((0, 3, 10)[sim.draw(3)])
    async with AsyncQueue[bytes](DESTINATION, url=URL) as queue:
        await queue.create((0, 6, 10)[sim.draw(3)])
    reading, feeding = sim.process("reader", read), sim.process("feeder", feed)
    background = []
    for _ in range(2 + sim.draw(8)):
        alive = [name for name in tasks if sim.alive(name)]
        while len(alive) < 1 + sim.draw(2):
            begin()
            alive = [name for name in tasks if sim.alive(name)]
        await asyncio.sleep(sim.seconds(1.5))
        alive = [name for name in tasks if sim.alive(name)]
        if not alive:
            continue
        name, what = alive[sim.draw(len(alive))], sim.draw(7)
        if what <= 1:
            sim.crash(name)
        elif what <= 4:
            lasts = sim.seconds(3 * options["lease"])
            background.append(asyncio.create_task(sim.stop(name, lasts, threads=what < 4)))
        elif what == 5:
            sim.reset(name)
        else:
            tasks[name].cancel()
    begin()
    await asyncio.gather(*background)
    await asyncio.gather(reading, feeding)
    while waiting := [task for name, task in tasks.items() if sim.alive(name)]:
        await asyncio.wait(waiting, timeout=1)
    for task in tasks.values():
        if task.done() and not task.cancelled() and not isinstance(task.exception(), QueueClosedError):
            task.result()
    expected = sorted(result for item in items for result in results_of(item))
    assert sorted(arrived) == expected, f"lost or doubled: {sorted(set(arrived) ^ set(expected))}, {len(arrived)}"
    await check_left(sim, raw=len(items), done=len(expected))


def test_pipe(seed: int) -> None:
    run(exactly_once, seed)
