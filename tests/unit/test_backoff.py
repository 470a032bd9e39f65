"""Pauses between tries: they grow, have a limit, and differ from client to client."""

from __future__ import annotations

import pytest

from apressure.concurrency.backoff import Backoff


@pytest.mark.parametrize(("failures", "longest"), [(0, 0.1), (1, 0.2), (2, 0.4), (3, 0.8), (4, 1.0), (5, 1.0)])
def test_each_pause_is_twice_as_long_up_to_the_limit(failures: int, longest: float) -> None:
    pauses = [Backoff(0.1, 1.0).pause(failures) for _ in range(200)]
    assert longest / 2 <= min(pauses) <= max(pauses) <= longest


def test_the_factor_says_how_fast_pauses_grow() -> None:
    assert Backoff(0.1, 1.0, factor=1.0).pause(50) <= 0.1
    assert 0.45 <= Backoff(0.1, 1.0, factor=3.0).pause(2) <= 0.9


def test_clients_that_failed_together_do_not_try_again_together() -> None:
    assert len({Backoff(1.0, 1.0).pause(0) for _ in range(10)}) == 10


def test_any_number_of_failures_has_a_pause() -> None:
    assert 0.5 <= Backoff(0.05, 1.0).pause(1_000_000) <= 1.0


def test_no_first_pause_means_no_pause() -> None:
    assert Backoff(0.0, 60.0).pause(10) == 0.0
