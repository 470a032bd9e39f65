"""All commands: a table of them, who may call them, and what their errors look like."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from apressure.events.server.administration import Administration
from apressure.events.server.arguments import Command, quoted
from apressure.events.server.handshake import Handshake
from apressure.events.server.operations import Operations
from apressure.events.server.outcomes import Answer, Replies, error_reply, in_task
from apressure.events.server.session import Session
from apressure.events.server.settings import ServerSettings
from apressure.events.server.wire.replies import ErrorReply, Reply
from apressure.events.server.wire.requests import ProtocolError

logger = logging.getLogger("apressure.events.server")

Pending = deque[list[bytes] | ProtocolError]
"""Commands that were read, and perhaps a last one that is none."""


class Commands:
    """Finds commands, checks the number of their arguments, and carries them out.

    Args:
        settings: What the server was told.
        operations: What the commands for events do.
        administration: What the commands for queues as a whole do.
        counts: Returns figures for INFO.
    """

    def __init__(
        self,
        settings: ServerSettings,
        operations: Operations,
        administration: Administration,
        counts: Callable[[], dict[str, int]],
    ) -> None:
        self._operations = operations
        self._table: dict[bytes, Command] = {}
        self._handshake = Handshake(settings.password, self._table, counts)
        self._table.update(_table(self._handshake, operations, administration))
        self._table[b"reset"] = Command(
            "RESET", 0, 0, self._reset, "Forgets what the connection has set, and its registration", is_open=True
        )

    def execute(self, session: Session, pending: Pending) -> Replies | Answer:
        """Carry out the first of the pending commands, perhaps with some that follow it.

        Returns:
            A reply for each of them, or what they wait for. It raises no error of a command.
        """
        command = pending[0]
        if isinstance(command, ProtocolError):
            logger.info("protocol error", extra={"client": session.peer, "reason": str(command)})
            session.leaving = True
            return [ErrorReply(f"ERR {command}")]
        found = self._table.get(command[0]) or self._table.get(command[0].lower())
        if found is None:
            return [ErrorReply(f"ERR unknown command {quoted(command[0])}")]
        if not session.authenticated and not found.is_open:
            return [ErrorReply("NOAUTH Authentication required.")]
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("command", extra={"client": session.peer, "command": command[0].decode().upper()})
        given = len(command) - 1
        if given < found.least:
            return [ErrorReply("ERR missing args")]
        if found.most is not None and given > found.most:
            return [ErrorReply(f"ERR too many args: {found.usage}")]
        try:
            if found.shares:
                alike = _alike(found, pending) if len(pending) > 1 else ()
                return found.run(session, command[1:], alike)  # type: ignore[no-any-return]
            reply = found.run(session, command[1:])
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return [error_reply(error)]
        return in_task(reply) if asyncio.iscoroutine(reply) else [reply]

    def forget(self, session: Session) -> None:
        """The client has gone."""
        self._operations.forget(session)

    async def _reset(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        await self._operations.register(session, ())
        session.authenticated = not self._handshake.needs_password
        session.protocol, session.name = 2, b""
        return "RESET"


def _alike(found: Command, pending: Pending) -> Iterator[list[bytes]]:
    """Give the arguments of those behind the first command that are the same one for the same queue."""
    name, queue = pending[0][:2]  # type: ignore[index]
    most = sys.maxsize if found.most is None else found.most
    for one in itertools.islice(pending, 1, None):
        if not isinstance(one, list) or not found.least < len(one) <= most + 1 or one[0] != name or one[1] != queue:
            return
        yield one[1:]


_ANY: Final = None


def _table(handshake: Handshake, queues: Operations, whole: Administration) -> dict[bytes, Command]:
    every = [
        Command(
            "QLPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED]", 3, _ANY, queues.push,
            "Adds events at the left end, the last ones in line", shares=True,
        ),
        Command(
            "QRPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED]", 3, _ANY,
            functools.partial(queues.push, front=True), "Adds events at the right end, the next ones in line",
            shares=True,
        ),
        Command(
            "QLPEEK queue", 1, 1, functools.partial(queues.peek, newest=True), "Shows the event that was pushed last"
        ),
        Command("QRPEEK queue", 1, 1, functools.partial(queues.peek, newest=False), "Shows the event that is next"),
        Command(
            "QRPOP queue [EX seconds] [WAIT seconds] [COUNT number] [LIMIT number] [NOACK] [CREATED] [TELL]", 1, 12,
            queues.pop, "Takes the next event", shares=True,
        ),
        Command(
            "QACK queue id [id ...] [REDO]", 2, _ANY, queues.ack, "Acknowledges events, or gives them back", shares=True
        ),
        Command("QFAIL queue id error [id error ...]", 3, _ANY, queues.fail, "Gives back events, and says why"),
        Command("QRETURN queue id [id ...]", 2, _ANY, queues.give_back, "Gives back events that nobody has seen"),
        Command("QEXTEND queue id seconds", 3, 3, queues.extend, "Gives the consumer of an event more time"),
        Command("QREGISTER [queue ...]", 0, _ANY, queues.register, "Registers for these queues only"),
        Command("QNOTIFY timeout", 1, 1, queues.notify, "Waits until a registered queue has an event"),
        Command("QFLUSH queue", 1, 1, queues.flush, "Removes all events of a queue"),
        Command("QSTATUS [queue ...]", 0, _ANY, queues.status, "Counts events and consumers, for programs"),
        Command("QINFO [queue ...]", 0, _ANY, queues.info, "Counts events and consumers, for people"),
        Command("QCREATE queue bound", 2, 2, whole.create, "Creates a queue; 0 is no bound"),
        Command("QDELETE queue", 1, 1, whole.delete, "Deletes a queue with all its events"),
        Command("QCLOSE queue [CREATED]", 1, 2, whole.close, "Closes a queue: nothing more can be pushed"),
        Command("QPAUSE queue", 1, 1, functools.partial(whole.pause, on=True), "Stops the consumers of a queue"),
        Command("QRESUME queue", 1, 1, functools.partial(whole.pause, on=False), "Ends a pause"),
        Command("QPURGE queue count", 2, 2, whole.purge, "Removes events that wait, and none in flight"),
        Command("QLOOK queue", 1, 1, whole.look, "Tells all about a queue, for programs"),
        Command("QDEAD queue passed count", 3, 3, whole.dead, "Shows dead letters, as the server keeps them"),
        Command("QREQUEUE queue count [letter ...]", 2, _ANY, whole.requeue, "Moves dead letters back"),
        Command("PING [message]", 0, 1, handshake.ping, "Answers PONG, or the message", is_open=True),
        Command("ECHO message", 1, 1, handshake.echo, "Answers the message"),
        Command("SELECT 0", 1, 1, handshake.select, "Selects the only database"),
        Command("QUIT", 0, 0, handshake.quit, "Closes the connection", is_open=True),
        Command("AUTH [default] password", 1, 2, handshake.auth, "Authenticates the client", is_open=True),
        Command(
            "HELLO [2|3 [AUTH user password] [SETNAME name]]", 0, _ANY, handshake.hello, "Chooses the version of RESP",
            is_open=True,
        ),
        Command("CLIENT subcommand [argument ...]", 1, _ANY, handshake.client, "ID, INFO, GETNAME, SETNAME, SETINFO"),
        Command("COMMAND [COUNT | DOCS | INFO] [name ...]", 0, _ANY, handshake.command, "Describes the commands"),
        Command("INFO [section ...]", 0, _ANY, handshake.info, "Describes the server"),
    ]  # fmt: skip
    return {one.usage.split()[0].lower().encode(): one for one in every}
