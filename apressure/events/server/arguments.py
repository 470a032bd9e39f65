"""The arguments of the commands for queues: read and checked, no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from apressure.events.engine.steps import Want
from apressure.events.server.wire.replies import ErrorReply

DEFAULT_LEASE: Final = 30.0
"""Seconds that a consumer has for QACK, if QRPOP has no EX (specification, "QRPOP")."""
LONGEST: Final = 10 * 365 * 86400.0
"""Seconds: the longest EX, WAIT, timeout or extension."""
MOST: Final = 1_000
"""The most events of one QRPOP with COUNT."""
MOST_ATTEMPTS: Final = 10**12
LONGEST_ERROR: Final = 1_000
"""Bytes of an error of QFAIL."""


Arguments = Sequence[bytes]
"""What stands behind the name of a command."""


class Push(NamedTuple):
    """QLPUSH or QRPUSH.

    Attributes:
        queue: The queue's name.
        events: Ids and contents; the first one is pushed first.
        noblock: Answer as soon as possible.
        nowait: Do not wait for room.
        created: The queue must have been created.
    """

    queue: str
    events: Sequence[tuple[bytes, bytes]]
    noblock: bool
    nowait: bool = False
    created: bool = False

    @classmethod
    def read(cls, arguments: Sequence[bytes]) -> Push:
        """Read `queue id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED]`; CREATED does not wait either.

        Raises:
            ErrorReply: An id has no contents, or the option is unknown.
        """
        queue, *rest = arguments
        option = rest.pop().upper() if len(rest) % 2 == 1 else b""
        if option not in (b"", b"NOBLOCK", b"NOWAIT", b"CREATED"):
            raise ErrorReply(
                "ERR syntax error: the last argument is neither NOBLOCK, nor NOWAIT, nor CREATED, nor the contents of "
                "an event"
            )
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        created = option == b"CREATED"
        return cls(name_of(queue), pairs, option == b"NOBLOCK", created or option == b"NOWAIT", created)


class Pop(NamedTuple):
    """QRPOP.

    Attributes:
        queue: The queue's name.
        lease: Seconds for QACK; 0 for at most once.
        most: How many events at most; None for one that is not in an array.
        wait: Seconds to wait for an event, and to say that the queue is closed; None for neither.
        created: The queue must have been created.
        tell: Say how often each event was delivered, or why there is none.
        limit: How often an event is delivered at most; 0 for no limit.
    """

    queue: str
    lease: float = DEFAULT_LEASE
    most: int | None = None
    wait: float | None = None
    created: bool = False
    tell: bool = False
    limit: int = 0

    @property
    def want(self) -> Want:
        """What the step is told."""
        return Want(int(self.lease * 1000), self.limit, self.created)

    @classmethod
    def read(cls, arguments: Sequence[bytes]) -> Pop:
        """Read `queue` and the options EX, WAIT, COUNT and LIMIT with a number, NOACK, CREATED and TELL, in any order.

        NOACK, a word of older okqs that released clients send, is EX 0. The first PHP client sends the seconds
        without EX: that number is ignored, as okq ignores it.

        Raises:
            ErrorReply: An option is unknown, has no value, or a wrong one.
        """
        if len(arguments) == 1:
            return cls(name_of(arguments[0]))
        lease, most, limit = DEFAULT_LEASE, None, 0
        wait: float | None = None
        flags = dict.fromkeys((b"NOACK", b"CREATED", b"TELL"), False)
        rest = list(arguments[1:])
        if rest[0].isdigit():
            del rest[0]
        while rest:
            option = rest.pop(0).upper()
            if option in flags:
                flags[option] = True
                continue
            if option not in (b"EX", b"WAIT", b"COUNT", b"LIMIT"):
                raise ErrorReply(
                    "ERR syntax error: QRPOP has the options EX, WAIT, COUNT, LIMIT, NOACK, CREATED and TELL, not "
                    f"{quoted(option)}"
                )
            if not rest:
                raise ErrorReply(f"ERR syntax error: {option.decode()} needs a value")
            given = rest.pop(0)
            if option == b"EX":
                lease = seconds(given, "expires")
            elif option == b"WAIT":
                wait = seconds(given, "wait")
            elif option == b"LIMIT":
                limit = number(given, "limit", MOST_ATTEMPTS, least=0)
            else:
                most = number(given, "count", MOST)
        no_ack, created, tell = flags.values()
        return cls(name_of(arguments[0]), 0.0 if no_ack else lease, most, wait, created, tell, limit)


class Ack(NamedTuple):
    """QACK.

    Attributes:
        queue: The queue's name.
        ids: The events.
        redo: Give them back.
    """

    queue: str
    ids: Sequence[bytes]
    redo: bool

    @classmethod
    def read(cls, arguments: Sequence[bytes]) -> Ack:
        """Read `queue id [id ...] [REDO]`. A last word REDO after an id is the option."""
        queue, *ids = arguments
        redo = len(ids) > 1 and ids[-1].upper() == b"REDO"
        return cls(name_of(queue), ids[:-1] if redo else ids, redo)


def seconds(given: bytes, what: str) -> float:
    """Return a time.

    Args:
        given: The argument.
        what: What it is, for the error.

    Raises:
        ErrorReply: It is not a number, negative, or longer than `LONGEST`.
    """
    try:
        value = float(given) if len(given) <= 32 and b"_" not in given else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= LONGEST:
        raise ErrorReply(
            f"ERR bad {what} value: {quoted(given)} is not a number of seconds between 0 and {LONGEST:.0f}"
        )
    return value


def name_of(given: bytes) -> str:
    """Return the name of a queue, as the library has it."""
    return given.decode("utf-8", "surrogateescape")


def quoted(given: bytes) -> str:
    """Return an argument for an error: short, on one line, in double quotes."""
    text = given[:64].decode("utf-8", "backslashreplace")
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return '"' + shown.replace('"', '\\"') + ('..."' if len(given) > 64 else '"')


def number(given: bytes, what: str, most: int, least: int = 1) -> int:
    """Return a whole number.

    Args:
        given: The argument.
        what: What it is, for the error.
        most: The largest number.
        least: The smallest one.

    Raises:
        ErrorReply: It is none, or is not in between.
    """
    if not given.isdigit() or len(given) > 15 or not least <= int(given) <= most:
        raise ErrorReply(f"ERR bad {what} value: {quoted(given)} is not a whole number between {least} and {most}")
    return int(given)
