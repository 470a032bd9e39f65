"""Processes that have trouble, one at a time or several together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal

from apressure import QueueClosedError
from tests.simulation.ledger import Ledger
from tests.simulation.world import Sim

Trouble = Literal["crash", "stop", "block", "reset", "reply", "cancel", "failover", "restart", "clock"]

When = Callable[[list[bytes]], dict[str, Any]]

USUAL: Final[tuple[Trouble, ...]] = ("crash", "crash", "stop", "stop", "block", "reset", "cancel")
BROKEN: Final[tuple[Trouble, ...]] = ("reset", "reply", "reply", "reply")
"""Connections break, most of them when a step is done and its reply is lost: then the client sends the step again."""


async def put_those(queue: Any, messages: Sequence[bytes], noted: set[bytes], **terms: Any) -> bool:
    """Put one message or a batch, and note what was put. Returns whether the queue is open."""
    try:
        await (queue.put(messages[0], **terms) if len(messages) == 1 else queue.put_many(messages, **terms))
    except QueueClosedError as error:
        noted.update(messages[: error.accepted])
        return False
    noted.update(messages)
    return True


class Crowd:
    """Processes.

    Args:
        sim: The world.
        lease: Seconds; processes stand still for up to three times as long.

    Attributes:
        tasks: What each process does, by its name.
    """

    def __init__(self, sim: Sim, lease: float) -> None:
        self.sim = sim
        self.lease = lease
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self._background: list[asyncio.Task[Any]] = []

    def add(self, kind: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a process."""
        name = f"{kind} {len(self.tasks) + 1}"
        self.tasks[name] = self.sim.process(name, work)

    def alive(self, kind: str = "") -> list[str]:
        """The names of the processes that live, of one kind or all."""
        return [name for name in self.tasks if name.startswith(kind) and self.sim.alive(name)]

    def trouble(self, kinds: tuple[Trouble, ...] = USUAL, spared: str = "nobody") -> None:
        """Let something happen to one process, if any lives.

        Args:
            kinds: What may happen, the more often it is named the more likely.
            spared: The kind of processes that neither crash nor are cancelled.
        """
        sim, alive = self.sim, self.alive()
        if not alive:
            return
        name, what = alive[sim.draw(len(alive))], kinds[sim.draw(len(kinds))]
        if what == "failover":
            sim.fail_over()
        elif what == "restart":
            sim.restart()
        elif what == "clock":
            sim.set_clock(sim.seconds(4 * self.lease) - 2 * self.lease)
        elif what == "reply":
            sim.lose_reply(name)
        elif what == "reset" or (what in {"crash", "cancel"} and name.startswith(spared)):
            sim.reset(name)
        elif what == "crash":
            sim.crash(name)
        elif what == "cancel":
            self.tasks[name].cancel()
        else:
            still = sim.stop(name, sim.seconds(3 * self.lease), threads=what == "stop")
            self._background.append(asyncio.create_task(still))

    async def put_some(self, queue: Any, ledger: Ledger, producer: int, when: When) -> None:
        """Put messages, one by one or in batches, until there are 40 or the queue is closed.

        Args:
            queue: Where to.
            ledger: Learns of them.
            producer: The number of the one who puts them; they begin with it.
            when: Returns more arguments of a put, given the messages.
        """
        sim, number = self.sim, 0
        while number < 40:
            messages = [b"%d.%d" % (producer, number + i) for i in range((1, 1, 2, 7)[sim.draw(4)])]
            number += len(messages)
            ledger.perhaps.update(messages)
            if not await put_those(queue, messages, ledger.put, **when(messages)):
                return
            await asyncio.sleep(sim.seconds((0, 0.2, 0.5)[sim.draw(3)]))

    async def ended(self) -> None:
        """Wait for all who live, and see that none of them failed."""
        await asyncio.gather(*self._background)
        while waiting := [self.tasks[name] for name in self.alive()]:
            await asyncio.wait(waiting, timeout=1)
            self.sim.raise_failures()
        self.sim.raise_failures()
