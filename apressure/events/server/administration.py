"""The commands about a queue as a whole: its bound, its end, pauses, dead letters. Only servers of ours have them."""

from __future__ import annotations

from typing import Final

from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.server.arguments import Arguments, number, quoted
from apressure.events.server.queues import Queues
from apressure.events.server.session import Session
from apressure.events.server.wire.replies import ErrorReply, Reply
from apressure.exceptions import QueueClosedError, ServerError

MAX_BOUND: Final = 10**12
_MOST_LETTERS: Final = 1000


class Administration:
    """What these commands do.

    Args:
        queues: The queues that are in use.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def create(self, session: Session, arguments: Arguments) -> Reply:
        """QCREATE queue bound"""
        return int(await self._queues[arguments[0]].steps.create(number(arguments[1], "bound", MAX_BOUND, least=0)))

    async def delete(self, session: Session, arguments: Arguments) -> Reply:
        """QDELETE queue"""
        queue = self._queues[arguments[0]]
        try:
            created = (await queue.steps.status()).created
        except ServerError:
            created = True  # it is damaged: deleting it is how to mend it
        await queue.steps.delete()
        if created:
            queue.note_end()
        return "OK"

    async def close(self, session: Session, arguments: Arguments) -> Reply:
        """QCLOSE queue [CREATED]"""
        name, *options = arguments
        if [one.upper() for one in options] not in ([], [b"CREATED"]):
            raise ErrorReply(f"ERR syntax error: QCLOSE has the option CREATED, not {quoted(options[0])}")
        queue = self._queues[name]
        try:
            await queue.steps.close(bool(options))
        except QueueClosedError:
            return 0
        queue.note_end()
        return 1

    async def pause(self, session: Session, arguments: Arguments, *, on: bool) -> Reply:
        """QPAUSE queue, QRESUME queue"""
        return int(await self._queues[arguments[0]].steps.pause(on))

    async def purge(self, session: Session, arguments: Arguments) -> Reply:
        """QPURGE queue count"""
        return await self._queues[arguments[0]].steps.purge(number(arguments[1], "count", MAX_EVENTS))

    async def look(self, session: Session, arguments: Arguments) -> Reply:
        """QLOOK queue"""
        status = await self._queues[arguments[0]].steps.status()
        return [
            int(status.exists), int(status.created), status.bound, int(status.closed), int(status.paused),
            status.waiting, status.claimed, status.consumers, status.dead,
        ]  # fmt: skip

    async def dead(self, session: Session, arguments: Arguments) -> Reply:
        """QDEAD queue passed count"""
        name, passed, most = arguments
        begin, count = number(passed, "passed", MAX_BOUND, least=0), number(most, "count", _MOST_LETTERS)
        return [*await self._queues[name].steps.dead_letters(begin, count)]

    async def requeue(self, session: Session, arguments: Arguments) -> Reply:
        """QREQUEUE queue count [letter ...]"""
        name, most, *letters = arguments
        return await self._queues[name].steps.requeue(number(most, "count", MAX_EVENTS), letters)
