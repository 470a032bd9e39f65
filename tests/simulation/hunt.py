"""Which runs there are, in which order, and `python -m tests.simulation.hunt SEEDS PLACE`: look for a failure.

It runs the package in the directory PLACE, and prints the first failure as JSON: how many runs it took, the test, the
seed, and what was wrong; or `null`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apressure
from tests.simulation import (
    test_dead_letters,
    test_dedup,
    test_delays,
    test_expiry,
    test_keys,
    test_leases,
    test_limits,
    test_members,
    test_pipe,
    test_puts,
    test_requests,
    test_schedules,
)
from tests.simulation.world import Work, run

TESTS: Final[dict[str, tuple[Work, int]]] = {
    "test_members": (test_members.together, 6),
    "test_durable_members": (test_members.durable, 3),
    "test_pipe": (test_pipe.exactly_once, 4),
    "test_failovers": (test_pipe.taken_over, 3),
    "test_puts": (test_puts.replies_lost, 3),
    "test_by_steps": (test_puts.by_steps, 2),
    "test_delays": (test_delays.at_its_time, 5),
    "test_dedup": (test_dedup.once, 8),
    "test_schedules": (test_schedules.driven, 5),
    "test_limits": (test_limits.limited, 6),
    "test_limits_and_failovers": (test_limits.taken_over, 2),
    "test_expiry": (test_expiry.perishing, 4),
    "test_keys": (test_keys.in_turn, 8),
    "test_requests": (test_requests.asked, 4),
    "test_requests_in_envelopes": (test_requests.asked_in_envelopes, 3),
    "test_dead_letters": (test_dead_letters.given_up, 3),
    "test_leases": (test_leases.taken_over, 4),
    "test_deletion": (test_members.deleted, 2),
    "test_blocked_event_loops": (test_leases.blocked, 1),
}
"""What each test runs, and its share of the seeds."""


def count_of(test: str, seeds: int) -> int:
    """Return how many of the seeds a test gets."""
    return max(1, round(seeds * TESTS[test][1] / sum(share for _, share in TESTS.values())))


def runs(seeds: int) -> Iterator[tuple[str, int]]:
    """All runs of so many seeds, each a test and its seed, as evenly mixed as their shares allow."""
    counts = {test: count_of(test, seeds) for test in TESTS}
    places = sorted(((seed + 0.5) / count, test, seed) for test, count in counts.items() for seed in range(count))
    return ((test, seed) for _, test, seed in places)


def hunt(seeds: int) -> dict[str, Any] | None:
    """Run until something is wrong."""
    for number, (test, seed) in enumerate(runs(seeds), 1):
        try:
            run(TESTS[test][0], seed)
        except Exception as error:
            return {"runs": number, "test": test, "seed": seed, "what": f"{type(error).__name__}: {error}"}
    return None


if __name__ == "__main__":
    assert Path(apressure.__path__[0]).parent == Path(sys.argv[2]), apressure.__path__
    logging.disable(logging.CRITICAL)
    print(json.dumps(hunt(int(sys.argv[1]))))
