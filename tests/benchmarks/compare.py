"""Run both sides in turn, so that other load on the machine affects both."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable

import redis

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from tests.benchmarks.cases import NAME, Bench, Case
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.libraries import OURS, Library, Program, ours


def loops() -> list[str]:
    """Return the installed event loops."""
    return ["asyncio", "uvloop"] if importlib.util.find_spec("uvloop") else ["asyncio"]


def title(server: EmbeddedServer) -> str:
    """Return the name of a server in the results."""
    return f"{server.software} {server.version}"


def with_code_by_hand(case: Case, server: EmbeddedServer, loop: str, scale: float, repetitions: int) -> list[Figure]:
    """Compare with code by hand, in this process."""
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        pairs = runner.run(measure(case, server.url, scale, repetitions))
    figures = []
    for index, (unit, goal) in enumerate(zip(case.unit, case.goal, strict=True)):
        each = [(ours[index], theirs[index]) for ours, theirs in pairs]
        figures.append(figure(title(server), case.name, case.other, loop, unit, goal, each))
    return figures


async def measure(case: Case, url: str, scale: float, repetitions: int) -> list[tuple[list[float], list[float]]]:
    """Return both sides' figures of each repetition."""
    pairs = []
    async with AsyncQueue(NAME, url=url) as queue, redis.asyncio.Redis.from_url(url) as client:
        bench = Bench(url, queue, client, scale)
        for _ in range(repetitions + 1):
            sides = []
            for side in (case.ours, case.by_hand):
                await client.flushall()
                await queue.create()
                sides.append(await side(bench))
            pairs.append((sides[0], sides[1]))
        await queue.delete()
    return pairs[1:]  # the first one warms up


def loop_factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of an event loop."""
    if loop == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


def with_library(
    library: Library, program: Program, server: EmbeddedServer, scale: float, repetitions: int
) -> list[Figure]:
    """Compare enqueueing and consuming with another library, in processes.

    Raises:
        CannotRun: The other library failed.
    """
    pairs = []
    versions: dict[str, str] = {}
    for _ in range(repetitions):
        mine, _ = one_round(OURS, ours(), server.url, scale)
        theirs, versions = one_round(library, program, server.url, scale)
        pairs.append((mine, theirs))
    loop = "node" if "node" in versions else loops()[-1]
    figures = []
    for index, case in enumerate(("enqueue", "consume")):
        each = [(mine[index], theirs[index]) for mine, theirs in pairs]
        figures.append(figure(title(server), case, library.name, loop, RATE, library.goals[index], each, versions))
    return figures


def one_round(library: Library, program: Program, url: str, scale: float) -> tuple[tuple[float, float], dict[str, str]]:
    """Enqueue and consume with one library. Return jobs a second, and versions."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        enqueue, versions = program.measure("enqueue", url, int(library.enqueue * scale))
        consume, _ = program.measure("consume", url, int(library.consume * scale))
        client.flushall()
    return (enqueue, consume), versions
