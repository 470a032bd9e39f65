"""Times and counts are checked in one place, and everywhere."""

from __future__ import annotations

import math
from typing import Any

import pytest

from apressure import AsyncQueue, FileQueue, validation
from apressure.connection.settings import Durability
from apressure.embedded import EmbeddedServer

NO_TIME = [(math.nan, ValueError), (-1, ValueError), (-0.001, ValueError), ("1", TypeError), (True, TypeError)]


@pytest.mark.parametrize(("value", "error"), NO_TIME)
def test_an_invalid_time_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"pause must be .* seconds"):
        validation.seconds(value, "pause")
    with pytest.raises(error, match=r"timeout must be .* seconds"):
        validation.timeout(value)


@pytest.mark.parametrize("value", [None, 0, 0.0, 1, 1e300, math.inf])
def test_a_timeout_is_none_or_at_least_0(value: float | None) -> None:
    validation.timeout(value)


def test_errors_name_the_limits() -> None:
    with pytest.raises(ValueError, match=r"^lease must be between 0.1 and 5 seconds, not 6$"):
        validation.seconds(6, "lease", 0.1, 5)
    with pytest.raises(ValueError, match=r"^pause must be more than 0 and at most 1,000,000 seconds, not 0$"):
        validation.seconds(0, "pause", above=True)
    with pytest.raises(ValueError, match=r"^timeout must be at least 0 seconds, not nan$"):
        validation.timeout(math.nan)
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds or None, not str$"):
        validation.timeout("1")


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (6, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)]
)
def test_an_invalid_count_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="bound must be"):
        validation.whole(value, "bound", 1, 5, "messages")


@pytest.mark.parametrize(("value", "error"), NO_TIME)
@pytest.mark.parametrize("option", ["connect_timeout", "response_timeout", "retry_timeout", "settle_timeout", "lease"])
def test_options_are_times(option: str, value: Any, error: type[Exception]) -> None:
    kind: Any = FileQueue if option == "lease" else AsyncQueue
    with pytest.raises(error, match=f"{option} must be"):
        kind("jobs", **{option: value})


@pytest.mark.parametrize(("value", "error"), NO_TIME)
def test_constructors_take_times(value: Any, error: type[Exception]) -> None:
    queue = AsyncQueue("jobs")
    with pytest.raises(error, match="timeout must be"):
        Durability(1, timeout=value)
    with pytest.raises(error, match="startup_timeout must be"):
        EmbeddedServer(startup_timeout=value)
    with pytest.raises(error, match="poll_interval must be"):
        FileQueue("jobs", poll_interval=value)
    for role in (queue.producer, queue.consumer):
        with pytest.raises(error, match="timeout must be"):
            role(timeout=value)
        with pytest.raises(error, match="lease must be"):
            role(lease=value)
