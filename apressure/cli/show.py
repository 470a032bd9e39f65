"""A queue's statistics for programs: as JSON and as lines.

The rule of this module: it reads the snapshot that `statistics()` returns and nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from apressure.queue.statistics import QueueStatistics, RoleStatistics


def printable(text: str) -> str:
    """Return `text` with control characters made visible: a queue's name, or a holder's, may contain any."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bound_text(bound: int) -> str:
    """Return a bound in words."""
    return f"bound {bound:,}" if bound else "no bound"


def as_dict(statistics: QueueStatistics) -> dict[str, Any]:
    """Return what `--json` prints. Times are ISO 8601, in UTC."""
    return {
        "name": statistics.name,
        "length": statistics.length,
        "bound": statistics.bound,
        "closed": statistics.closed,
        "in_flight": statistics.in_flight,
        "producer": _role_dict(statistics.producer),
        "consumer": _role_dict(statistics.consumer),
        "produced_messages": statistics.produced_messages,
        "produced_bytes": statistics.produced_bytes,
        "consumed_messages": statistics.consumed_messages,
        "consumed_bytes": statistics.consumed_bytes,
    }


def queue_line(statistics: QueueStatistics) -> str:
    """Return one line for scripts: name, length, bound and state, with tabs between."""
    return f"{printable(statistics.name)}\t{statistics.length}\t{statistics.bound}\t{state_text(statistics)}"


def statistics_lines(statistics: QueueStatistics) -> list[str]:
    """Return everything for scripts, a line each: what it is, a tab, the value."""
    lines = []
    for key, value in as_dict(statistics).items():
        if isinstance(value, dict):
            lines += [f"{key}_{part}\t{plain(inner)}" for part, inner in value.items()]
        else:
            lines.append(f"{key}\t{plain(value)}")
    return lines


def state_text(statistics: QueueStatistics) -> str:
    """Return the state in a word."""
    return "closed" if statistics.closed else "open"


def _role_dict(role: RoleStatistics) -> dict[str, Any]:
    return {
        "state": role.state,
        "holder": role.holder,
        "since": _iso(role.since),
        "expires": _iso(role.expires),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds")


def plain(value: object) -> str:
    """Return a value as text for scripts: a dash for nothing, yes or no, and nothing that a terminal would obey."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
