"""What the commands ask of a queue, whatever its kind."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from apressure.core.errors import missing
from apressure.exceptions import QueueDoesNotExistError, QueueEmptyError
from apressure.monitor.finding import bare_name
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


@contextlib.asynccontextmanager
async def delayed_counted(queue: Any) -> AsyncIterator[None]:
    """Where a queue is empty but for delayed items, say how many there are, and when the first one is due."""
    try:
        yield
    except QueueEmptyError as error:
        statistics = await queue.statistics()
        if not statistics.delayed or not statistics.next_due:
            raise
        more = f"{statistics.delayed} delayed, the first one due in {statistics.next_due:.0f} s"
        raise QueueEmptyError(f"{error}; {more}", name=queue.name) from None


async def must_exist(queue: Any) -> None:
    """Raise if there is no such queue: perhaps the name is wrong."""
    if not await queue.exists():
        raise missing(queue.name)


def command_for(verb: str, address: QueueAddress) -> str:
    """Return a command on a queue, for people to type."""
    return f"apressure {verb} {shlex.quote(str(address))}"


def advised(error: BaseException, named: Mapping[str, Collection[QueueAddress]]) -> BaseException:
    """Return an error with the command that creates a named queue, where it is missing."""
    if isinstance(error, QueueDoesNotExistError) and len(addresses := list(named.get(error.name, ()))) == 1:
        advice = f"create it first with `{command_for('create', addresses[0])}`"
        return QueueDoesNotExistError(str(error).replace("create it first", advice), name=error.name)
    return error


def told(address: QueueAddress, **result: object) -> dict[str, object]:
    """Return the result of a command on a queue, for `--json`: its name, and what else there is to say."""
    return {"name": bare_name(address), **result}
