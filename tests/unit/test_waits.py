"""The shape of every blocking operation: what its queue is told while it waits."""

from __future__ import annotations

import asyncio

from apressure.core.backpressure import Backpressure, Putter
from apressure.core.waiting import FULL, Parked, Wait, Waits


class Noting(Backpressure):
    """Keeps what waits for room."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Putter] = []

    def note(self, putter: Putter) -> None:
        self.noted.append(putter)


class Woken(Waits):
    """Wakes each operation at once, and notes which of its waits are for room then."""

    def __init__(self) -> None:
        super().__init__()
        self.backpressure = self.noting = Noting()
        self.for_room: list[list[bool]] = []

    def look(self) -> list[bool]:
        return [putter.for_room is not None for putter in self.noting.noted]

    def note(self) -> list[int]:
        return []

    def park(self, wait: Wait, noted: list[int]) -> Parked:
        self.for_room.append(self.look())
        parked = Parked(loop=asyncio.get_running_loop())
        parked.set_result(None)
        return parked


async def test_a_wait_for_a_role_is_none_for_room() -> None:
    waits = Woken()
    answers = iter([Wait("producer"), FULL, Wait("room"), Wait("producer"), FULL])

    async def step() -> Wait | str:
        return next(answers, "done")

    assert await waits.until(step, None, "orders") == "done"
    assert waits.for_room == [[], [True], [True], [False], [False, True]]
    assert waits.look() == [False, False]
