"""Run both sides in turn, so that other load on the machine affects both."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping

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
        mine, _ = one_round(ours(), server.url, OURS.counts(scale))
        theirs, versions = one_round(program, server.url, library.counts(scale))
        pairs.append((mine, theirs))
    figures = []
    for case, goal in zip(("enqueue", "consume"), library.goals, strict=True):
        each = [(mine[case], theirs[case]) for mine, theirs in pairs]
        figures.append(figure(title(server), case, library.name, loop_of(versions), RATE, goal, each, versions))
    return figures


def loop_of(versions: Mapping[str, str]) -> str:
    """Return the event loop of a library with these versions."""
    return "node" if "node" in versions else loops()[-1]


def one_round(
    program: Program, url: str, counts: Mapping[str, int], *terms: str
) -> tuple[dict[str, float], dict[str, str]]:
    """Enqueue so many jobs, and consume so many. Return jobs a second of both, and versions."""
    rates: dict[str, float] = {}
    versions: dict[str, str] = {}
    with redis.Redis.from_url(url) as client:
        client.flushall()
        for what, count in counts.items():
            rates[what], versions = program.measure(what, url, count, *terms)
        client.flushall()
    return rates, versions
