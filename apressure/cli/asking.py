"""What the commands ask of a queue, whatever its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apressure.cli.show import printable
from apressure.exceptions import QueueDoesNotExistError
from apressure.queue_addresses import QueueAddress


async def look(queue: Any) -> Any:
    """Return a queue's statistics.

    Raises:
        QueueDoesNotExistError: There is no such queue; perhaps the name is wrong.
    """
    statistics = await queue.statistics()
    if not any(getattr(statistics, count, 0) for count in ("length", "in_flight", "delayed", "dead_letters")):
        await must_exist(queue)  # not all kinds raise
    return statistics


async def must_exist(queue: Any) -> None:
    """Raise if there is no such queue: perhaps the name is wrong."""
    if not await queue.exists():
        raise QueueDoesNotExistError(f"the queue {printable(queue.name)!r} does not exist", name=queue.name)


def told(address: QueueAddress, **result: object) -> dict[str, object]:
    """Return the result of a command on a queue, for `--json`: its name, and what else there is to say."""
    return {"name": bare_name(address), **result}


def bare_name(address: QueueAddress) -> str:
    """Return the name of a queue alone, without the directory that it is in."""
    return Path(address.name).name if address.kind == "files" else address.name
