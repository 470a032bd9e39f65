"""The schedules of a queue on an okq server of ours, which keeps them on its Redis; see `ScheduleStore`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from apressure.connection.schedules import encoded, records_of
from apressure.core.workers import Beside, WaitingProducer, WorkerStatistics, told_of
from apressure.exceptions import ServerTooOldError

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
        schedules, registered = await asyncio.gather(
            self._commands.ask("QSCHEDULES", b"COUNT", ours=True), self._registered()
        )
        return Beside(int(schedules[0]), 0, *registered)

    async def _registered(self) -> tuple[tuple[WorkerStatistics, ...], tuple[WaitingProducer, ...]]:
        try:
            told, _ = await self._commands.ask("QWORKERS", ours=True)
        except ServerTooOldError:  # a server of ours from before this command
            return (), ()
        return told_of(told)

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        done, _ = await self._commands.change("QSCHEDULE", encoded(name), was or b"", becomes or b"")
        return bool(done)

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        outcome, _ = await self._commands.change("QSCHEDULE", encoded(name), was, becomes, message)
        return outcome.decode()  # type: ignore[no-any-return]
