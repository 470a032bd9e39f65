"""All commands: a table of them, who may call them, and what their errors look like."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from apressure.events.server.arguments import quoted
from apressure.events.server.connection import Pending
from apressure.events.server.handshake import Handshake
from apressure.events.server.operations import Operations
from apressure.events.server.session import Session
from apressure.events.server.settings import ServerSettings
from apressure.events.server.wire.replies import ErrorReply, Reply
from apressure.exceptions import PressureError, QueueClosedError

logger = logging.getLogger("apressure.events.server")

Run = Callable[[Session, Sequence[bytes]], Reply | Awaitable[Reply]]
RunMany = Callable[[Session, Sequence[Sequence[bytes]]], Awaitable[Sequence[Reply | None]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        usage: How it is called, for people.
        least: The fewest arguments, without its name.
        most: The most; None for no limit.
        run: Carries it out, and returns the reply.
        summary: What it does.
        run_many: Carries out several pipelined calls for one queue together. It returns their replies: fewer, if the
            others must be tried again. None if there is no such thing.
        is_open: Clients may call it before AUTH.
    """

    usage: str
    least: int
    most: int | None
    run: Run
    summary: str
    run_many: RunMany | None = None
    is_open: bool = False


class Commands:
    """Finds commands, checks the number of their arguments, and carries them out.

    Args:
        settings: What the server was told.
        operations: What the commands for queues do.
        counts: Returns figures for INFO.
    """

    def __init__(self, settings: ServerSettings, operations: Operations, counts: Callable[[], dict[str, int]]) -> None:
        self._operations = operations
        self._table: dict[bytes, Command] = {}
        self._handshake = Handshake(settings.password, self._table, counts)
        self._table.update(_table(self._handshake, operations))
        self._table[b"reset"] = Command(
            "RESET", 0, 0, self._reset, "Forgets what the connection has set, and its registration", is_open=True
        )

    def execute(
        self, session: Session, command: list[bytes], following: Pending
    ) -> Sequence[Reply] | Coroutine[Any, Any, Sequence[Reply]]:
        """Carry out a command, with those of the following ones that can share its step; see `connection.Host`."""
        name = command[0]
        found = self._table.get(name.lower())
        if found is None:
            return [ErrorReply(f"ERR unknown command {quoted(name)}")]
        if not session.authenticated and not found.is_open:
            return [ErrorReply("NOAUTH Authentication required.")]
        if refused := _refused(found, command):
            return [refused]
        if found.run_many is not None:
            alike = [command]
            while following and _alike(found, command, following[0]):
                alike.append(following.popleft())  # type: ignore[arg-type]
            if len(alike) > 1:
                return self._await_many(session, found.run_many, alike, following)
        try:
            reply = found.run(session, command[1:])
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return [error_reply(error)]
        return self._await(reply) if isinstance(reply, Awaitable) else [reply]

    def forget(self, session: Session) -> None:
        """The client has gone."""
        self._operations.forget(session)

    async def _await(self, reply: Awaitable[Reply]) -> Sequence[Reply]:
        try:
            return [await reply]
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return [error_reply(error)]

    async def _await_many(
        self, session: Session, run_many: RunMany, alike: Sequence[list[bytes]], following: Pending
    ) -> Sequence[Reply]:
        replies = await run_many(session, [one[1:] for one in alike])
        following.extendleft(reversed(alike[len(replies) :]))
        return [error_reply(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _reset(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        await self._operations.register(session, ())
        session.authenticated = not self._handshake.needs_password
        session.protocol, session.name = 2, b""
        return "RESET"


def error_reply(error: Exception) -> ErrorReply:
    """Return what the client is told of an error."""
    if isinstance(error, ErrorReply):
        return error
    if isinstance(error, QueueClosedError):
        return ErrorReply("ERR queue closed")
    if isinstance(error, (PressureError, ValueError)):
        return ErrorReply(f"ERR {error}")
    logger.error("a command failed: a bug of the server", exc_info=error)
    return ErrorReply("ERR internal error: the server's log has the details")


def _refused(found: Command, command: Sequence[bytes]) -> ErrorReply | None:
    given = len(command) - 1
    if given < found.least:
        return ErrorReply("ERR missing args")
    if found.most is not None and given > found.most:
        return ErrorReply(f"ERR too many args: {found.usage}")
    return None


def _alike(found: Command, command: Sequence[bytes], other: Any) -> bool:
    """Whether another command is the same one for the same queue, with enough arguments."""
    return (
        isinstance(other, list)
        and other[0].lower() == command[0].lower()
        and other[1:2] == command[1:2]
        and _refused(found, other) is None
    )


_ANY: Final = None


def _table(handshake: Handshake, queues: Operations) -> dict[bytes, Command]:
    every = [
        Command(
            "QLPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT]", 3, _ANY, queues.push_left,
            "Adds events at the left end, the last ones in line", queues.push_many_left,
        ),
        Command(
            "QRPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT]", 3, _ANY, queues.push_right,
            "Adds events at the right end, the next ones in line", queues.push_many_right,
        ),
        Command("QLPEEK queue", 1, 1, queues.peek_left, "Shows the event that was pushed last"),
        Command("QRPEEK queue", 1, 1, queues.peek_right, "Shows the event that is next"),
        Command(
            "QRPOP queue [EX seconds] [WAIT seconds] [COUNT number]", 1, 7, queues.pop, "Takes the next event",
            queues.pop_many,
        ),
        Command(
            "QACK queue id [id ...] [REDO]", 2, _ANY, queues.ack, "Acknowledges events, or gives them back",
            queues.ack_many,
        ),
        Command("QEXTEND queue id seconds", 3, 3, queues.extend, "Gives the consumer of an event more time"),
        Command("QREGISTER [queue ...]", 0, _ANY, queues.register_client, "Registers for these queues only"),
        Command("QNOTIFY timeout", 1, 1, queues.notify, "Waits until a registered queue has an event"),
        Command("QFLUSH queue", 1, 1, queues.flush, "Removes all events of a queue"),
        Command("QSTATUS [queue ...]", 0, _ANY, queues.status, "Counts events and consumers, for programs"),
        Command("QINFO [queue ...]", 0, _ANY, queues.info, "Counts events and consumers, for people"),
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
