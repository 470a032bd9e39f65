"""The schedules of a queue on an okq server of ours, which keeps them on its Redis; see `ScheduleStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        names = (name.decode(errors="surrogateescape") for name in flat[::2])
        return now, dict(zip(names, flat[1::2], strict=True))

    async def count(self) -> int:
        count, _ = await self._commands.ask("QSCHEDULES", b"COUNT", ours=True)
        return int(count)

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        done, _ = await self._commands.change("QSCHEDULE", name.encode(), was or b"", becomes or b"")
        return bool(done)

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        outcome, _ = await self._commands.change("QSCHEDULE", name.encode(), was, becomes, message)
        return outcome.decode()  # type: ignore[no-any-return]
