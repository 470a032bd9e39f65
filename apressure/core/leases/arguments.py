"""What a program says of leases, checked: the same for every kind of queue that is on a server."""

from __future__ import annotations

from typing import Final

from apressure import validation
from apressure.protocols import DEFAULT_LEASE, DEFAULT_MAX_HOLD, LONGEST_LEASE

SHORTEST_LEASE: Final = 0.1
"""Seconds."""


def lease_of(lease: float | None, name: str = "lease", default: float = DEFAULT_LEASE) -> float:
    """Return a lease in seconds, checked; None for the default."""
    if lease is None:
        return default
    return validation.seconds(lease, name, SHORTEST_LEASE, LONGEST_LEASE, none=True)


def max_hold_of(max_hold: float | None) -> float:
    """Return a `max_hold` in seconds, checked; None for the default."""
    if max_hold is None:
        return DEFAULT_MAX_HOLD
    return validation.seconds(max_hold, "max_hold", above=True, none=True)
