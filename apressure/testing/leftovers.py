"""Finds what a test left behind on the server: roles, shares of roles, and deliveries that are not acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, Literal, NamedTuple

from apressure.connection.client import Client
from apressure.events.engine.steps import active_queues
from apressure.events.queue import EventQueue
from apressure.exceptions import QueueDoesNotExistError
from apressure.pressure.queue import AsyncQueue
from apressure.pressure.statistics import QueueStatistics, RoleStatistics
from apressure.tasks.engine.steps import queue_names
from apressure.tasks.queue import TaskQueue

Kind = Literal["roles", "deliveries", "tasks", "connections"]

KINDS: Final[tuple[Kind, ...]] = ("roles", "deliveries", "tasks", "connections")

_LEAVE: Final = {
    "producer": "Leave the block of producer() before the test ends",
    "consumer": "Leave the block of consumer(), await serve's end, or settle each delivery of receive()",
}


class Leftover(NamedTuple):
    """Something that a test left behind.

    Attributes:
        kind: What it is, as the marker `pressure_leaves` names it.
        text: What it is and what to do, for a person.
    """

    kind: Kind
    text: str


async def on_server(client: Client) -> list[Leftover]:
    """Return what holds roles or deliveries of any queue in the client's database. It changes nothing."""
    found: list[Leftover] = []
    for name in await client.queues():
        try:
            statistics = await AsyncQueue(name, client=client).statistics()
        except QueueDoesNotExistError:  # deleted meanwhile
            continue
        found += [*_roles(statistics), *in_flight("AsyncQueue", statistics)]
    async for kind, queue in _others(client):
        found += in_flight(kind, await queue.statistics())
    return found


def in_flight(kind: str, statistics: Any) -> list[Leftover]:
    """Return the unsettled deliveries of a queue, if there are any.

    Args:
        kind: The class of the queue.
        statistics: A snapshot of any kind of queue.
    """
    if not statistics.in_flight:
        return []
    count = f"{statistics.in_flight} received item{'s are' if statistics.in_flight > 1 else ' is'}"
    return [
        Leftover("deliveries", f"{kind} {statistics.name!r}: {count} not settled. Call ack() or nack() on each "
                 "delivery, or use consumer(), which acknowledges.")
    ]  # fmt: skip


def waiting(kind: str, statistics: Any) -> list[Leftover]:
    """Return the tasks that wait in operations of a queue object, if there are any; the arguments are as above."""
    counts = {
        "put": statistics.waiting_putters,
        "get or receive": statistics.waiting_receivers,
    }
    return [
        Leftover("tasks", f"{kind} {statistics.name!r}: {count} asyncio task{'s wait' if count > 1 else ' waits'} in "
                 f"{operation}. Cancel and await each task that the test started.")
        for operation, count in counts.items() if count
    ]  # fmt: skip


async def _others(client: Client) -> AsyncIterator[tuple[str, EventQueue[Any] | TaskQueue[Any]]]:
    for name in await active_queues(client):
        yield "EventQueue", EventQueue(name, client=client)
    for name in await queue_names(client):
        yield "TaskQueue", TaskQueue(name, client=client)


def _roles(statistics: QueueStatistics) -> list[Leftover]:
    found = []
    roles: dict[str, RoleStatistics] = {"producer": statistics.producer, "consumer": statistics.consumer}
    for role, now in roles.items():
        holders = [now.holder]
        if role == "consumer" and statistics.members:
            holders = [member.holder for member in statistics.members]
        elif now.state not in ("leased", "held"):
            continue
        for holder in holders:
            how = "shared by" if statistics.members and role == "consumer" else "held by"
            text = f"AsyncQueue {statistics.name!r}: the {role} role is {how} {holder!r}. {_LEAVE[role]}."
            found.append(Leftover("roles", text))
    return found
