"""Run both sides in turn, so that the machine's moods meet both."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator, Mapping

import redis

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from tests.benchmarks.cases import NAME, Bench, Case
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.libraries import OURS, Library, Program, ours
from tests.servers import CannotRun


def loops() -> list[str]:
    """The event loops that are installed."""
    return ["asyncio", "uvloop"] if importlib.util.find_spec("uvloop") else ["asyncio"]


def title(server: EmbeddedServer) -> str:
    """What a server is called in the results."""
    return f"{server.software} {server.version}"


def with_code_by_hand(case: Case, server: EmbeddedServer, loop: str, scale: float, repetitions: int) -> list[Figure]:
    """Compare with what a user would write by hand, in this process."""
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        pairs = runner.run(measure(case, server.url, scale, repetitions))
    figures = []
    for index, (unit, goal) in enumerate(zip(case.unit, case.goal, strict=True)):
        each = [(ours[index], theirs[index]) for ours, theirs in pairs]
        figures.append(figure(title(server), case.name, case.other, loop, unit, goal, each))
    return figures


async def measure(case: Case, url: str, scale: float, repetitions: int) -> list[tuple[list[float], list[float]]]:
    """Both sides' figures of each repetition."""
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
    """What makes an event loop of that name."""
    if loop == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


def with_libraries(
    programs: Mapping[Library, Program], server: EmbeddedServer, scale: float, repetitions: int
) -> Iterator[list[Figure] | CannotRun]:
    """Compare with other libraries, each in a process of its own: enqueue into an empty queue, and consume from it."""
    if not programs:
        return
    rounds: dict[Library, list[tuple[float, float]]] = {}
    versions: dict[Library, dict[str, str]] = {}
    left = {OURS: ours(), **programs}
    for _ in range(repetitions):
        for library, program in list(left.items()):
            try:
                rates, versions[library] = one_round(library, program, server.url, scale)
            except CannotRun as failure:
                if library is OURS:
                    raise
                yield CannotRun(f"{library.name}: {failure}")
                del left[library]
            else:
                rounds.setdefault(library, []).append(rates)
    for library in left:
        if library is not OURS:
            yield [
                figure(
                    title(server),
                    case,
                    library.name,
                    "node" if "node" in versions[library] else loops()[-1],
                    RATE,
                    library.goals[index],
                    [(a[index], b[index]) for a, b in zip(rounds[OURS], rounds[library], strict=True)],
                    versions[library],
                )
                for index, case in enumerate(("enqueue", "consume"))
            ]


def one_round(library: Library, program: Program, url: str, scale: float) -> tuple[tuple[float, float], dict[str, str]]:
    """Enqueue and consume with one library: jobs a second, and versions."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        enqueue, versions = program.measure("enqueue", url, int(library.enqueue * scale))
        consume, _ = program.measure("consume", url, int(library.consume * scale))
        client.flushall()
    return (enqueue, consume), versions
