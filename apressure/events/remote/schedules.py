"""The schedules of a queue on an okq server of ours, which keeps them on its Redis; see `ScheduleStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apressure.connection.schedules import encoded, records_of
from apressure.core.workers import Beside

if TYPE_CHECKING:
    from apressure.events.remote.commands import Commands


class RemoteSchedules:
    """The steps of a queue that are about its schedules (QSCHEDULES, QSCHEDULE).

    A command whose reply was lost is sent again: the server knows a record that it has written already.

    Args:
        commands: The commands for the queue.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def read(self) -> tuple[int, dict[str, bytes]]:
        (now, *flat), _ = await self._commands.ask("QSCHEDULES", ours=True)
        return now, records_of(flat)

    async def beside(self) -> Beside:
        count, _ = await self._commands.ask("QSCHEDULES", b"COUNT", ours=True)
        return Beside(int(count), 0)

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        done, _ = await self._commands.change("QSCHEDULE", encoded(name), was or b"", becomes or b"")
        return bool(done)

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        outcome, _ = await self._commands.change("QSCHEDULE", encoded(name), was, becomes, message)
        return outcome.decode()  # type: ignore[no-any-return]
