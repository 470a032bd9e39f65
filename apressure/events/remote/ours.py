"""The commands of our servers for one queue as a whole, as methods. A released okq has none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from apressure.events.remote.commands import Commands
from apressure.exceptions import OutcomeUnknownError, QueueAlreadyExistsError, QueueClosedError, QueueDoesNotExistError


class Look(NamedTuple):
    """What a server of ours tells of a queue; see `apressure.events.engine.answers.Status`."""

    exists: int
    created: int
    bound: int
    closed: int
    paused: int
    waiting: int
    claimed: int
    consumers: int
    dead: int


class Ours:
    """The commands. Each raises ServerTooOldError on a released okq, and PressureError if the server cannot be reached.

    One whose repeat would do more is not repeated when its reply was lost: that raises OutcomeUnknownError.

    Args:
        commands: All commands of the server.
        name: The queue's name.

    Attributes:
        name: As given.
    """

    def __init__(self, commands: Commands, name: str) -> None:
        self.name = name
        self._commands = commands

    async def look(self) -> Look:
        """Look at the queue."""
        reply, _ = await self._commands.ask_ours(self.name, "QLOOK")
        return Look(*reply[: len(Look._fields)])

    async def create(self, bound: int, exist_ok: bool) -> bool:
        """Create the queue. Return whether it is new; after a lost reply it counts as new if `exist_ok` is set."""
        new, lost = await self._commands.ask_ours(self.name, "QCREATE", bound)
        if not new and lost and not exist_ok:
            raise OutcomeUnknownError(
                f"the connection broke, and now the queue {self.name!r} exists: this create, or another one, created it"
            )
        if not new and not exist_ok:
            raise QueueAlreadyExistsError(f"the queue {self.name!r} exists already", name=self.name)
        return bool(new) or lost

    async def delete(self) -> None:
        """Delete the queue with everything in it."""
        try:
            await self._commands.ask_ours(self.name, "QDELETE", again=False)
        except QueueDoesNotExistError:
            raise QueueDoesNotExistError(f"the queue {self.name!r} does not exist", name=self.name) from None

    async def close(self, expected: bool) -> None:
        """Close the queue; `expected`: it must have been created."""
        done, lost = await self._commands.ask_ours(self.name, "QCLOSE", *([b"CREATED"] if expected else ()))
        if not done and not lost:
            raise QueueClosedError(f"the queue {self.name!r} is closed", name=self.name)

    async def pause(self, pausing: bool) -> bool:
        """Pause the queue, or resume it. Return whether that is new; after a lost reply it counts as new."""
        done, lost = await self._commands.ask_ours(self.name, "QPAUSE" if pausing else "QRESUME")
        return bool(done) or lost

    async def purge(self, most: int) -> int:
        """Delete up to so many events that wait. Return how many."""
        deleted, _ = await self._commands.ask_ours(self.name, "QPURGE", most, again=False)
        return int(deleted)

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""
        letters, _ = await self._commands.ask_ours(self.name, "QDEAD", passed, most)
        return list(letters)

    async def requeue(self, most: int, chosen: Sequence[bytes] = (), expected: bool = False) -> bytes:  # noqa: ARG002
        """Move dead letters back; see `EventSteps.requeue`."""
        letters, _ = await self._commands.ask_ours(self.name, "QREQUEUE", most, *chosen, again=False)
        return bytes(letters)
