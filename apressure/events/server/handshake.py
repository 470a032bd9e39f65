"""What Redis clients send by themselves when they connect, and what people type to look around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from apressure.events.server.arguments import Command
from apressure.events.server.session import Session
from apressure.events.server.wire.replies import ErrorReply, Reply


class Handshake:
    """The commands that need no queue.

    Args:
        password: What AUTH must send; None: nothing.
        commands: The names of all commands (lower case), with what is known of them.
        counts: Returns figures for INFO, such as the number of connections.
    """

    def __init__(
        self, password: str | None, commands: Mapping[bytes, Command], counts: Callable[[], Mapping[str, int]]
    ) -> None:
        self.needs_password = password is not None
        self._password = password
        self._commands = commands
        self._counts = counts

    def ping(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """PING [message]"""
        return arguments[0] if arguments else "PONG"

    def echo(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """ECHO message"""
        return arguments[0]

    def select(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """SELECT 0"""
        if arguments[0] != b"0":
            raise ErrorReply("ERR DB index is out of range: there is only database 0")
        return "OK"

    def quit(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """QUIT"""
        session.leaving = True
        return "OK"

    def auth(self, session: Session, arguments: Sequence[bytes]) -> Reply:
        """AUTH [default] password"""
        session.authenticate(arguments, self._password)
        return "OK"

    def hello(self, session: Session, arguments: Sequence[bytes]) -> Reply:
        """HELLO [2|3 [AUTH user password] [SETNAME name]]"""
        rest = list(arguments)
        protocol = session.protocol
        if rest:
            given = rest.pop(0)
            if given not in (b"2", b"3"):
                raise ErrorReply("NOPROTO unsupported protocol version: this server speaks 2 and 3")
            protocol = int(given)
        name = session.name
        while rest:
            option = rest.pop(0).upper()
            if option == b"AUTH" and len(rest) >= 2:
                session.authenticate((rest.pop(0), rest.pop(0)), self._password)
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

    def client(self, session: Session, arguments: Sequence[bytes]) -> Reply:
        """CLIENT ID | INFO | GETNAME | SETNAME name | SETINFO LIB-NAME|LIB-VER value"""
        what, *rest = arguments
        match what.upper(), rest:
            case b"ID", []:
                return session.number
            case b"INFO", []:
                return session.describe() + b"\n"
            case b"GETNAME", []:
                return session.name or None
            case b"SETNAME", [name]:
                session.name = _checked_name(name)
                return "OK"
            case b"SETINFO", [key, value] if key.upper() in (b"LIB-NAME", b"LIB-VER"):
                session.library[key[4:].lower()] = _checked_name(value)
                return "OK"
        raise ErrorReply(
            f"ERR unknown subcommand or wrong arguments for CLIENT '{_shown(what)}'. There are ID, INFO, GETNAME, "
            "SETNAME and SETINFO"
        )

    def command(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """COMMAND [COUNT | DOCS [name ...] | INFO [name ...]]"""
        what, *names = arguments or [b"INFO"]
        if what.upper() == b"COUNT" and not names:
            return len(self._commands)
        chosen = [name.lower() for name in names] or list(self._commands)
        if what.upper() == b"DOCS":
            return {
                name: {b"summary": self._commands[name].summary.encode(), b"group": b"queue"}
                for name in chosen
                if name in self._commands
            }
        if what.upper() == b"INFO":
            return [_info(name, self._commands[name]) if name in self._commands else None for name in chosen]
        raise ErrorReply(f"ERR unknown subcommand '{_shown(what)}' of COMMAND. There are COUNT, DOCS and INFO")

    def info(self, session: Session, arguments: Sequence[bytes]) -> Reply:  # noqa: ARG002
        """INFO [section ...]: clients look whether the server is `loading`."""
        lines = ["# Server", f"apressure_version:{_version().decode()}", "loading:0", "role:master", "# Clients"]
        lines += [f"{key}:{value}" for key, value in self._counts().items()]
        return "".join(f"{line}\r\n" for line in lines).encode()


def _info(name: bytes, known: Command) -> list[Reply]:
    # The arity counts the command's name; a negative one is the least.
    arity = 1 + known.least if known.least == known.most else -(1 + known.least)
    return [name, arity, [], 0, 0, 0]


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
