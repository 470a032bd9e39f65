"""Statistics as data of JSON: for `--json`, and for programs that read the page."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, Final

from apressure.core.statistics import OWN
from apressure.queue_addresses import Kind, QueueAddress

CLASSES: Final[dict[Kind, str]] = {
    "queue": "AsyncQueue", "events": "EventQueue", "tasks": "TaskQueue", "files": "FileQueue",
}  # fmt: skip
"""The class of each kind of queue."""


def told(address: QueueAddress, statistics: Any) -> dict[str, Any]:
    """Return what statistics say of a queue, without what they say of the queue object. Times are ISO 8601, in UTC."""
    data = {"name": statistics.name, "address": str(address), "kind": CLASSES[address.kind]}
    for field in dataclasses.fields(statistics):
        if field.name not in OWN:
            data[field.name] = as_data(getattr(statistics, field.name))
    return data


def as_data(value: Any) -> Any:
    """Return a value of statistics as data of JSON."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, tuple):
        return [as_data(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def iso(moment: datetime) -> str:
    """Return a moment as ISO 8601, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
