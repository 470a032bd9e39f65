"""The commands of our servers for one queue as a whole, as the steps of a driver. A released okq has few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apressure.connection.wire.command import Argument
from apressure.core.errors import closed
from apressure.events.engine.answers import Event, Status
from apressure.events.remote.client import OkqClient
from apressure.exceptions import QueueDoesNotExistError


class Ours:
    """The commands. All but `peek` raise ServerTooOldError on a released okq, and PressureError without a server.

    One whose repeat would do more is not repeated when its reply was lost: that raises OutcomeUnknownError. Cancelled,
    a command that changes something ends all the same; see `OkqClient.step`.

    Args:
        client: The client of the server.
        name: The queue's name.
    """

    def __init__(self, client: OkqClient, name: str) -> None:
        self._name = name
        self._client = client

    async def status(self) -> Status:
        """Look at the queue."""
        reply, _ = await self._client.commands.ask_ours(self._name, "QLOOK")
        exists, created, bound, closed, paused, waiting, claimed, consumers, dead = reply[:9]
        return Status(
            bound, created == 1, waiting, claimed, exists, consumers, closed == 1, dead, None, paused == 1
        )  # fmt: skip

    async def peek(self, newest: bool) -> Event | None:
        """Return the event that is next, or the newest one; None if none waits. A released okq can do that, too."""
        pair = await self._client.commands.peek(self._name, newest)
        return None if pair is None else Event(*pair)

    async def create(self, bound: int) -> bool | None:
        """Create the queue, unless it exists. Returns whether it is new; None if a lost reply may have said so."""
        new, lost = await self._change("QCREATE", bound)
        return True if new else None if lost else False

    async def delete(self) -> None:
        """Delete the queue with everything in it."""
        try:
            await self._change("QDELETE", again=False)
        except QueueDoesNotExistError:
            raise QueueDoesNotExistError(f"the queue {self._name!r} does not exist", name=self._name) from None

    async def close(self, expected: bool) -> None:
        """Close the queue; `expected`: it must have been created."""
        done, lost = await self._change("QCLOSE", *([b"CREATED"] if expected else ()))
        if not done and not lost:
            raise closed(self._name)

    async def pause(self, pausing: bool, expected: bool = False) -> bool:  # noqa: ARG002
        """Pause the queue, or resume it. Return whether that is new; after a lost reply it counts as new."""
        done, lost = await self._change("QPAUSE" if pausing else "QRESUME")
        return bool(done) or lost

    async def purge(self, most: int) -> int:
        """Delete up to so many events that wait. Return how many."""
        deleted, _ = await self._change("QPURGE", most, again=False)
        return int(deleted)

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""
        letters, _ = await self._client.commands.ask_ours(self._name, "QDEAD", passed, most)
        return list(letters)

    async def requeue(self, most: int, chosen: Sequence[bytes] = (), expected: bool = False) -> bytes:  # noqa: ARG002
        """Move dead letters back; see `EventSteps.requeue`."""
        letters, _ = await self._change("QREQUEUE", most, *chosen, again=False)
        return bytes(letters)

    async def _change(self, verb: str, *arguments: Argument, again: bool = True) -> tuple[Any, bool]:
        return await self._client.step(self._client.commands.ask_ours(self._name, verb, *arguments, again=again))
