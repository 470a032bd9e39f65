"""The event loop of the okq server stays awake while commands follow each other closely, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apressure.events.server.outcomes import AWAKE, Polling

TURN = AWAKE / 10
"""Seconds that a turn takes while nothing comes."""


class Loop:
    """An event loop that counts its turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turns = 0
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, function: Callable[[], None]) -> None:
        self._soon.append(function)

    def run(self, seconds: float) -> float:
        """Let time pass. Returns the seconds for which the loop was awake."""
        end, before = self.now + seconds, self.turns
        while self._soon and self.now < end:
            soon, self._soon = self._soon, []
            self.now += TURN
            self.turns += 1
            for function in soon:
                function()
        self.now = max(self.now, end)
        return (self.turns - before) * TURN


@pytest.fixture
def loop() -> Loop:
    return Loop()


def polling(loop: Loop, cores: int = 2) -> Polling:
    return Polling(cores, lambda: loop.now, loop.call_soon)


def test_it_stays_awake_from_one_command_to_the_next(loop: Loop) -> None:
    polls = polling(loop)
    for _ in range(100):
        polls.command()
        assert loop.run(AWAKE / 2) == pytest.approx(AWAKE / 2, abs=2 * TURN)
    assert loop.run(1) <= AWAKE + 2 * TURN


def test_it_sleeps_if_nothing_comes(loop: Loop) -> None:
    polling(loop).command()
    assert loop.run(1) == pytest.approx(AWAKE, abs=2 * TURN)
    assert loop.run(1) == 0


def test_commands_now_and_then_hardly_keep_it_awake(loop: Loop) -> None:
    polls = polling(loop)
    awake = 0.0
    for _ in range(1_000):
        polls.command()
        awake += loop.run(0.001)
    assert awake < 1_000 * AWAKE / 40


def test_it_stays_awake_again_as_soon_as_that_pays(loop: Loop) -> None:
    polls = polling(loop)
    for _ in range(1_000):
        polls.command()
        loop.run(0.001)
    for _ in range(64):
        polls.command()
        loop.run(AWAKE / 2)
    awake = 0.0
    for _ in range(100):
        polls.command()
        awake += loop.run(AWAKE / 2)
    assert awake == pytest.approx(100 * AWAKE / 2, rel=0.2)


def test_it_never_waits_awake_on_a_single_core(loop: Loop) -> None:
    polls = polling(loop, cores=1)
    for _ in range(10):
        polls.command()
        assert loop.run(AWAKE / 2) == 0
