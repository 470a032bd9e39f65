"""All commands: a table of them, who may call them, and what their errors look like.

Those that Redis clients send by themselves when they connect, and that people type to look around, are here, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import itertools
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from apressure.events.server import administration as admin
from apressure.events.server.arguments import Arguments, quoted
from apressure.events.server.operations import Operations, Session
from apressure.events.server.outcomes import Answer, Replies, error_reply, in_task
from apressure.events.server.wire import ErrorReply, ProtocolError, Reply

logger = logging.getLogger("apressure.events.server")

Pending = deque[list[bytes] | ProtocolError]
"""Commands that were read, and perhaps a last one that is none."""


@dataclasses.dataclass(slots=True)
class Command:
    """One command.

    Attributes:
        usage: How it is called: what is in brackets may be missing, and `...` stands for more of the same.
        run: Carries it out, given the session and the arguments one by one, and returns the reply.
        summary: What it does.
        shares: `run` is given the session, the name of the queue, the other arguments, and those of the same calls for
            the same queue that are pipelined behind it. It returns an `Answer` for as many of them as can share its
            step.
        is_open: Clients may call it before AUTH.
        least: The fewest arguments, without its name.
        most: The most.
    """

    usage: str
    run: Callable[..., Any]
    summary: str
    shares: bool = False
    is_open: bool = False
    least: int = dataclasses.field(init=False)
    most: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.least = len(re.sub(r"\[.*\]", "", self.usage).split()) - 1
        self.most = sys.maxsize if "..." in self.usage else len(self.usage.split()) - 1


class Commands:
    """Finds commands, checks the number of their arguments, and carries them out.

    Args:
        password: What AUTH must send; None: nothing.
        operations: What the commands for events do.
        counts: Returns figures for INFO, such as the number of connections.
    """

    def __init__(self, password: str | None, operations: Operations, counts: Callable[[], Mapping[str, int]]) -> None:
        self._password = password
        self._operations = operations
        self._counts = counts
        self._table = {one.usage.split()[0].lower().encode(): one for one in self._all()}

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
        if len(command) <= found.least:
            return [ErrorReply("ERR missing args")]
        if len(command) > found.most + 1:
            return [ErrorReply(f"ERR too many args: {found.usage}")]
        try:
            if found.shares:
                alike = _alike(found, pending) if len(pending) > 1 else ()
                return found.run(session, command[1], command[2:], alike)  # type: ignore[no-any-return]
            reply = found.run(session, *command[1:])
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return [error_reply(error)]
        return in_task(reply) if asyncio.iscoroutine(reply) else [reply]

    # Of the connection.

    def _select(self, session: Session, number: bytes) -> Reply:  # noqa: ARG002
        if number != b"0":
            raise ErrorReply("ERR DB index is out of range: there is only database 0")
        return "OK"

    def _quit(self, session: Session) -> Reply:
        session.leaving = True
        return "OK"

    async def _reset(self, session: Session) -> Reply:
        await self._operations.register(session)
        session.authenticated = self._password is None
        session.protocol, session.name = 2, b""
        return "RESET"

    def _auth(self, session: Session, *arguments: bytes) -> Reply:
        *user, given = arguments  # perhaps with the user `default`
        if self._password is None:
            if user == [b"default"]:  # as Redis without a password: its user takes any
                return "OK"
            raise ErrorReply("ERR AUTH was sent, but this server has no password. Leave it out, or set one")
        right = hmac.compare_digest(given, self._password.encode("utf-8", "surrogateescape"))
        if not right or user not in ([], [b"default"]):
            raise ErrorReply("WRONGPASS invalid username-password pair or user is disabled.")
        session.authenticated = True
        return "OK"

    def _hello(self, session: Session, version: bytes | None = None, *options: bytes) -> Reply:
        protocol = {None: session.protocol, b"2": 2, b"3": 3}.get(version)
        if protocol is None:
            raise ErrorReply("NOPROTO unsupported protocol version: this server speaks 2 and 3")
        name, rest = session.name, list(options)
        while rest:
            option = rest.pop(0).upper()
            if option == b"AUTH" and len(rest) >= 2:
                self._auth(session, rest.pop(0), rest.pop(0))
            elif option == b"SETNAME" and rest:
                name = _checked_name(rest.pop(0))
            else:
                raise ErrorReply(f"ERR Syntax error in HELLO option '{_shown(option)}'")
        if not session.authenticated:
            raise ErrorReply(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
                "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at "
                "the same time"
            )
        session.protocol, session.name = protocol, name
        return {
            b"server": b"apressure", b"version": _version(), b"proto": protocol, b"id": session.number,
            b"mode": b"standalone", b"role": b"master", b"modules": [],
        }  # fmt: skip

    def _client(self, session: Session, what: bytes, *rest: bytes) -> Reply:
        match what.upper(), rest:
            case b"ID", ():
                return session.number
            case b"INFO", ():
                told = b" ".join(b"lib-%b=%b" % (key, value) for key, value in session.library.items())
                return b"id=%d addr=%b name=%b resp=%d queues=%d %b\n" % (
                    session.number, session.peer.encode(), session.name, session.protocol, len(session.registered),
                    told,
                )  # fmt: skip
            case b"GETNAME", ():
                return session.name or None
            case b"SETNAME", (name,):
                session.name = _checked_name(name)
                return "OK"
            case b"SETINFO", (key, value) if key.upper() in (b"LIB-NAME", b"LIB-VER"):
                session.library[key[4:].lower()] = _checked_name(value)
                return "OK"
        known = "There are ID, INFO, GETNAME, SETNAME and SETINFO"
        raise ErrorReply(f"ERR unknown subcommand or wrong arguments for CLIENT '{_shown(what)}'. {known}")

    def _command(self, session: Session, what: bytes = b"INFO", *names: bytes) -> Reply:  # noqa: ARG002
        if what.upper() == b"COUNT" and not names:
            return len(self._table)
        chosen = [(name, self._table.get(name)) for name in map(bytes.lower, names or self._table)]
        if what.upper() == b"DOCS":
            return {name: {b"summary": one.summary.encode(), b"group": b"queue"} for name, one in chosen if one}
        if what.upper() == b"INFO":
            # The arity counts the command's name; a negative one is the least.
            return [
                one and [name, (1 + one.least) * (1 if one.least == one.most else -1), [], 0, 0, 0]
                for name, one in chosen
            ]
        raise ErrorReply(f"ERR unknown subcommand '{_shown(what)}' of COMMAND. There are COUNT, DOCS and INFO")

    def _info(self, session: Session, *sections: bytes) -> Reply:  # noqa: ARG002
        lines = ["# Server", f"apressure_version:{_version().decode()}", "loading:0", "role:master", "# Clients"]
        lines += [f"{key}:{value}" for key, value in self._counts().items()]
        return "".join(f"{line}\r\n" for line in lines).encode()

    # The table.

    def _of_queue(self, run: Callable[..., Any], **how: bool) -> Callable[..., Any]:
        """Return what calls a function with a queue, instead of the session and the queue's name."""
        return lambda _, name, *arguments: run(self._operations.queues[name], *arguments, **how)

    def _all(self) -> list[Command]:
        own, of = self._operations, self._of_queue
        return [
            Command("QLPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED]", own.push,
                    "Adds events at the left end, the last ones in line", shares=True),
            Command("QRPUSH queue id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED | BACK]",
                    partial(own.push, front=True), "Adds events at the right end, the next ones in line", shares=True),
            Command("QDELAY queue when id contents [id contents ...] [CREATED]", partial(own.push, delayed=True),
                    "Adds events when they are due", shares=True),
            Command("QLPEEK queue", of(admin.peek, newest=True), "Shows the event that was pushed last"),
            Command("QRPEEK queue", of(admin.peek, newest=False), "Shows the event that is next"),
            Command("QRPOP queue [EX seconds] [WAIT seconds] [COUNT number] [LIMIT number] [NOACK] [CREATED] [TELL]",
                    own.pop, "Takes the next event", shares=True),
            Command("QACK queue id [id ...] [REDO]", own.ack, "Acknowledges events, or gives them back", shares=True),
            Command("QFAIL queue id error [id error ...]", of(admin.fail), "Gives back events, and says why"),
            Command("QLATER queue when id error [id error ...]", of(admin.fail_for_later),
                    "Gives back events, when they are due, and says why"),
            Command("QRETURN queue id [id ...]", of(admin.give_back), "Gives back events that nobody has seen"),
            Command("QEXTEND queue id seconds", of(admin.extend), "Gives the consumer of an event more time"),
            Command("QREGISTER [queue ...]", own.register, "Registers for these queues only"),
            Command("QNOTIFY timeout", own.notify, "Waits until a registered queue has an event"),
            Command("QFLUSH queue", of(admin.flush), "Removes all events of a queue"),
            Command("QSTATUS [queue ...]", own.status, "Counts events and consumers, for programs"),
            Command("QINFO [queue ...]", own.info, "Counts events and consumers, for people"),
            Command("QCREATE queue bound", of(admin.create), "Creates a queue; 0 is no bound"),
            Command("QDELETE queue", of(admin.delete), "Deletes a queue with all its events"),
            Command("QCLOSE queue [CREATED]", of(admin.close), "Closes a queue: nothing more can be pushed"),
            Command("QPAUSE queue", of(admin.pause, on=True), "Stops the consumers of a queue"),
            Command("QRESUME queue", of(admin.pause, on=False), "Ends a pause"),
            Command("QLIMIT queue name value [name value ...]", of(admin.limit),
                    "Limits how many events are handed out"),
            Command("QPURGE queue count", of(admin.purge), "Removes events that wait, and none in flight"),
            Command("QPROMOTE queue count [id ...]", of(admin.promote), "Makes delayed events due now"),
            Command("QLOOK queue", of(admin.look), "Tells all about a queue, for programs"),
            Command("QDEAD queue passed count", of(admin.dead), "Shows dead letters, as the server keeps them"),
            Command("QREQUEUE queue count [letter ...]", of(admin.requeue), "Moves dead letters back"),
            Command("QDISCARD queue letter [letter ...]", of(admin.discard), "Deletes dead letters"),
            Command("QSCHEDULES queue [COUNT]", of(admin.schedules), "Shows or counts schedules, for programs"),
            Command("QSCHEDULE queue name was becomes [contents]", of(admin.schedule),
                    "Changes a schedule, and adds an event"),
            Command("QWORKERS queue [BEAT | LEAVE | ASK ...]", of(admin.workers),
                    "Shows, registers or asks those that work on a queue, for programs"),
            Command("PING [message]", lambda _, message="PONG": message, "Answers PONG, or the message", is_open=True),
            Command("ECHO message", lambda _, message: message, "Answers the message"),
            Command("SELECT 0", self._select, "Selects the only database"),
            Command("QUIT", self._quit, "Closes the connection", is_open=True),
            Command("AUTH [default] password", self._auth, "Authenticates the client", is_open=True),
            Command("HELLO [2|3 [AUTH user password] [SETNAME name] ...]", self._hello, "Chooses the version of RESP",
                    is_open=True),
            Command("CLIENT subcommand [argument ...]", self._client, "ID, INFO, GETNAME, SETNAME, SETINFO"),
            Command("COMMAND [COUNT | DOCS | INFO] [name ...]", self._command, "Describes the commands"),
            Command("INFO [section ...]", self._info, "Describes the server"),
            Command("RESET", self._reset, "Forgets what the connection has set, and its registration", is_open=True),
        ]  # fmt: skip


def _alike(found: Command, pending: Pending) -> Iterator[Arguments]:
    """Give the arguments of those behind the first command that are the same one for the same queue."""
    start = pending[0][:2]  # type: ignore[index]
    for one in itertools.islice(pending, 1, None):
        if not isinstance(one, list) or not found.least < len(one) <= found.most + 1 or one[:2] != start:
            return
        yield one[2:]


def _checked_name(name: bytes) -> bytes:
    if any(byte < 33 or byte > 126 for byte in name):
        raise ErrorReply("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _shown(word: bytes) -> str:
    return word[:64].decode("utf-8", "backslashreplace")


def _version() -> bytes:
    try:
        return version("apressure").encode()
    except PackageNotFoundError:
        return b"0"
