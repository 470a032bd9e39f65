"""What the commands ask of a queue, whatever its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apressure.cli.exits import UsageError
from apressure.cli.show import printable
from apressure.exceptions import QueueDoesNotExistError
from apressure.queue_addresses import QueueAddress


def verb(queue: Any, name: str) -> Any:
    """Return a method of a queue.

    Raises:
        UsageError: Its kind has no such method: okq's commands cannot do everything.
    """
    method = getattr(queue, name, None)
    if method is None:
        raise UsageError(
            f"{type(queue).__name__} has no {name!r}: its format cannot do that. For a queue on an okq server, give "
            f"the URL of its Redis instead, redis://host:6379/0/events:{printable(queue.name)}"
        )
    return method


async def look(queue: Any) -> Any:
    """Return a queue's statistics.

    Raises:
        QueueDoesNotExistError: There is no such queue; perhaps the name is wrong.
    """
    statistics = await queue.statistics()
    if not getattr(statistics, "dead_letters", 0):  # those of events may be all that is left
        await must_exist(queue)
    return statistics


async def must_exist(queue: Any) -> None:
    """Raise if there is no such queue: perhaps the name is wrong."""
    if not await queue.exists():
        raise QueueDoesNotExistError(f"the queue {printable(queue.name)!r} does not exist", name=queue.name)


def told(address: QueueAddress, **result: object) -> dict[str, object]:
    """Return the result of a command on a queue, for `--json`: its name, and what else there is to say."""
    return {"name": Path(address.name).name if address.kind == "files" else address.name, **result}
