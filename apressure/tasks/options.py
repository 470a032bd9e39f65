"""The options of queues of tasks, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

from apressure import validation
from apressure.connection.client import Client

OnOrphan = Literal["retry", "fail"]
"""What happens to a task whose node dies."""

Purgeable = Literal["pending", "scheduled", "complete", "failed"]
"""The statuses of tasks that `purge` can delete."""

DEFAULT_RESULT_TTL: Final = 604800.0
"""Seconds for which results are kept: seven days."""


def one_of(choices: Sequence[str], value: Any, name: str) -> None:
    """Raise ValueError if an argument is none of these."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def ttl_of(result_ttl: float | None) -> float:
    """Return for how many seconds results are kept, checked; 0 keeps them."""
    if result_ttl is None:
        return 0.0
    return validation.seconds(result_ttl, "result_ttl", most=math.inf, above=True, none=True)


def fraction_of(fraction: Any) -> float:
    """Return how far a task has come, checked.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not between 0 and 1.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError(f"fraction must be a number from 0 to 1, not {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
    return float(fraction)


_PERIOD: Final = 365 * 86_400
"""Seconds: a smaller eta is a mistake, because nobody schedules for 1970."""


def time_of(eta: datetime | float) -> float:
    """Return a time in seconds since 1970.

    Raises:
        TypeError: It is neither a datetime nor a number.
        ValueError: It is a datetime without a time zone, no finite number, or a period instead of a time.
    """
    if isinstance(eta, datetime):
        if eta.tzinfo is None:
            raise ValueError("eta must say its time zone, as in datetime.now(UTC) + timedelta(hours=1)")
        return eta.timestamp()
    if isinstance(eta, bool) or not isinstance(eta, (int, float)):
        raise TypeError(f"eta must be a datetime or seconds since 1970, not {type(eta).__name__}")
    if not math.isfinite(eta):
        raise ValueError(f"eta must be a finite number of seconds, not {eta}")
    if 0 < eta < _PERIOD:
        raise ValueError(f"eta counts seconds since 1970, so {eta} is in that year. Write time.time() + {eta}")
    return float(eta)


def refuse_unfit(client: Client) -> None:
    """Raise if queues of tasks cannot be on the client's server.

    Raises:
        ValueError: It is a cluster, or the client uses no scripts.
    """
    if client.settings.address.nodes and client.settings.address.service is None:
        raise ValueError(
            "a TaskQueue cannot be on a cluster: Blueque's keys share no slot. Use a single server, or one that "
            "Sentinels watch"
        )
    if not client.settings.scripting:
        raise ValueError("a TaskQueue needs scripts on the server: leave out scripting=False")
