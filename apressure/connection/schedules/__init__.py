"""The schedules of a queue on a server: a hash of ours, from their names to their records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from apressure.connection.sender import Sender, script
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Script, Series
from apressure.core.workers import Beside, told_of

_BEFORE: Final = """\
local schedules, becomes, was, name = table.remove(KEYS), table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)
local kept = redis.call('HGET', schedules, name)
if kept == becomes then answer = {'put'} elseif kept ~= was then answer = {'changed'} end
"""
"""The occasion was put already, and the reply was lost; or somebody else was faster."""

_AFTER: Final = """\
if %s then
  redis.call('HSET', schedules, name, becomes)
  answer = {'put'}
elseif type(answer) ~= 'table' or answer[1] == 'put' or answer[1] == 'pushed' then
  answer = {'full'}
end
"""


@functools.cache
def _putting(room: str, name: str, done: str) -> Script:
    """Return a kind's script that puts, as a part of a step that writes the record of a schedule, too."""
    return Script(room, name, before=_BEFORE, after=_AFTER % done)


class ServerSchedules:
    """The steps of a queue that are about its schedules.

    Args:
        sender: Sends the queue's steps.
        name: The script that puts.
        done: Lua that says whether its `answer` means that a message was put.
        arguments: Returns the ARGV of that script, given its number in its series, and the message.
    """

    def __init__(
        self, sender: Sender, name: str, done: str, arguments: Callable[[bytes, bytes], list[Argument]]
    ) -> None:
        self._sender = sender
        self._key = (sender.keys.schedules,)
        self._name = name
        self._script = functools.partial(_putting, sender.room, done=done)
        self._arguments = arguments

    async def read(self) -> tuple[int, dict[str, bytes]]:
        now, flat = await self._run("read", [])
        return now, records_of(flat)

    async def beside(self) -> Beside:
        schedules, dedup_ids, *registered = await self.kept()
        return Beside(schedules, dedup_ids, *told_of(registered))

    async def kept(self) -> list[Any]:
        """Return the same as the server tells it: see `lua/count.lua`."""
        keys = self._sender.keys
        call = script(__name__, "count").on((*self._key, keys.dedup, keys.workers))
        return await self._sender.carry_out(call, [])  # type: ignore[no-any-return]

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        return bool(await self._run("write", [encoded(name), was or b"", becomes or b""]))

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        series = Series(self._script, self._sender.keys.for_script)
        arguments = [*self._arguments(series.next(), message), encoded(name), was, becomes]
        answer = await self._sender.carry_out(series.call(self._name, lambda: self._key), arguments, _is_put)
        return answer[0].decode()  # type: ignore[no-any-return]

    async def _run(self, name: str, arguments: list[Argument]) -> Any:
        return await self._sender.carry_out(
            script(__name__, name).on(self._key), arguments, bool if name == "write" else None
        )


def records_of(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return the records by name, in order, of names and records that a server tells one after the other."""
    names = (name.decode(errors="surrogateescape") for name in flat[::2])
    return dict(sorted(zip(names, flat[1::2], strict=True)))


def encoded(name: str) -> bytes:
    """Return a schedule's name as the server has it."""
    return name.encode(errors="surrogateescape")


def _is_put(answer: Any) -> bool:
    return bool(answer == [b"put"])
