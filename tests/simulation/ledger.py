"""What became of each message, and what a queue is left with."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from apressure import AsyncQueue, PressureError
from tests.simulation.world import URL, Sim


class Ledger:
    """Who was handed out which message, and which acknowledgements were confirmed.

    Args:
        in_order: One consumer follows the other, and messages say in which order each producer put them: `number`, or
            `producer.number`.

    Attributes:
        put: The messages that were put for certain.
        perhaps: Those whose put ended with an error that leaves it open.
        exact: No delivery is lost: each message is handed out as often as it is delivered.
        timely: Nobody sets the server's clock.
        overtaken: Somebody sets it, so a consumer may handle what another one has had since: it cannot know yet.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order = in_order
        self.put: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.doubts = 0
        """Gets whose outcome is not known: each may have taken a message."""
        self.exact = False
        self.timely = True
        self.overtaken = False
        self._due: dict[bytes, float] = {}
        self._attempts: dict[bytes, list[int]] = {}
        self._acked: dict[bytes, int] = {}

    @property
    def acknowledged(self) -> set[bytes]:
        """The messages whose acknowledgement was confirmed."""
        return set(self._acked)

    @property
    def handed_out_to_somebody(self) -> set[bytes]:
        """The messages that a consumer has had."""
        return set(self._attempts)

    def begin_again(self, messages: Iterable[bytes]) -> None:
        """They are put anew, and their attempts begin at 1."""
        for message in messages:
            self._attempts[message] = []
            self._due.pop(message, None)

    def due(self, messages: Iterable[bytes], moment: float) -> None:
        """They are not to come before this time."""
        if self.timely:
            self._due.update(dict.fromkeys(messages, moment))

    def released(self, message: bytes, attempts: int) -> None:
        """It goes back, and that it was handed out was no attempt; at least, if the lease lasts until then."""
        if attempts in self._attempts[message]:
            self._attempts[message].remove(attempts)

    def lease_lost(self) -> None:
        """What was given back may come at once, and deliveries that nobody has seen count."""
        self.exact = False
        self._due.clear()

    def handed_out(self, message: bytes, attempts: int) -> None:
        """A consumer has it."""
        before = self._attempts.setdefault(message, [])
        if self.overtaken and attempts < max([*before, self._acked.get(message, 0)]):
            return
        assert attempts > max(before, default=0), f"{message!r} came as attempt {attempts} after {before}"
        assert message not in self._acked, f"{message!r} came as attempt {attempts} after it was acknowledged"
        assert not self.exact or attempts == len(before) + 1, f"{message!r} came as attempt {attempts} after {before}"
        early = self._due.get(message, 0) - time.time()
        assert early < 0.002, f"{message!r} came {early:.3f} s before its time"  # the server counts milliseconds
        before.append(attempts)
        if self._in_order:
            producer, number = _place(message)
            unseen = self.put - self._attempts.keys()
            passed = [one for one in unseen if _place(one)[0] == producer and _place(one)[1] < number]
            assert not passed, f"{message!r} came before {sorted(passed)}"

    def acked(self, message: bytes, attempts: int) -> None:
        """The server has confirmed an acknowledgement."""
        assert message not in self._acked, f"{message!r} was acknowledged twice"
        self._acked[message] = attempts

    def got(self, message: bytes) -> None:
        """A `get` has it: it was acknowledged by that."""
        attempts = max(self._attempts.get(message, ()), default=0) + 1
        self.handed_out(message, attempts)
        self.acked(message, attempts)

    def check(self) -> None:
        """Everything was handed out; again only if it had not been acknowledged, and then it was marked."""
        missing = self.put - {message for message, attempts in self._attempts.items() if attempts}
        assert len(missing) <= self.doubts, f"lost: {sorted(missing)}"
        strangers = self._attempts.keys() - self.put - self.perhaps
        assert not strangers, f"never put: {sorted(strangers)}"
        for message, attempts in self._attempts.items():
            acked = self._acked.get(message)
            assert acked is None or max(attempts, default=0) <= acked, (
                f"{message!r}, acknowledged as {acked}, came: {attempts}"
            )


def _place(message: bytes) -> tuple[bytes, int]:
    producer, _, number = message.rpartition(b".")
    return producer, int(number)


async def check_left(sim: Sim, **messages: int | None) -> None:
    """Queues that were closed and drained hold nothing, their roles are free, and they can be deleted without a trace.

    Args:
        sim: The world.
        messages: How many messages were put into each queue; None if that is not known exactly.
    """

    async def look() -> None:
        for name, count in messages.items():
            async with AsyncQueue[bytes](name, url=URL) as queue:
                while True:
                    seen = await queue.statistics()
                    if seen.producer.state == seen.consumer.state == "free":
                        break
                    await asyncio.sleep(1)  # a dead connection may have claimed a role
                    with contextlib.suppress(PressureError):
                        await queue.get_nowait()  # heals what it finds
                assert (seen.length, seen.in_flight, seen.delayed, seen.members) == (0, 0, 0, ()), seen
                assert seen.produced_messages == seen.consumed_messages, seen
                assert count in {None, seen.produced_messages}, seen
                await queue.delete()

    await sim.process("the one who looks", look)
    left = sim.server.lasting_keys()
    assert not left, f"keys left: {left}"
