"""The arguments of the commands for queues: read and checked, no I/O."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        usage: How it is called, for people.
        least: The fewest arguments, without its name.
        most: The most; None for no limit.
        run: Carries it out, given the session and the arguments, and returns the reply.
        summary: What it does.
        shares: `run` is also given the arguments of the same calls for the same queue that are pipelined behind it. It
            returns an `Answer` for as many of them as can share its step.
        is_open: Clients may call it before AUTH.
    """

    usage: str
    least: int
    most: int | None
    run: Callable[..., Any]
    summary: str
    shares: bool = False
    is_open: bool = False


class Push(NamedTuple):
    """QLPUSH or QRPUSH.

    Attributes:
        queue: The queue's name, as it came.
        events: Ids and contents; the first one is pushed first.
        noblock: Answer as soon as possible.
        nowait: Do not wait for room.
        created: The queue must have been created.
    """

    queue: bytes
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
        return cls(queue, pairs, option == b"NOBLOCK", created or option == b"NOWAIT", created)


class Pop(NamedTuple):
    """QRPOP.

    Attributes:
        queue: The queue's name, as it came.
        want: What the step is told beside the number of events.
        most: How many events at most; None for one that is not in an array.
        wait: Seconds to wait for an event, and to say that the queue is closed; None for neither.
        tell: Say how often each event was delivered, or why there is none.
    """

    queue: bytes
    want: Want
    most: int | None = None
    wait: float | None = None
    tell: bool = False

    @classmethod
    def read(cls, arguments: Sequence[bytes]) -> Pop:
        """Read `queue` and the options EX, WAIT, COUNT and LIMIT with a number, NOACK, CREATED and TELL, in any order.

        NOACK, a word of older okqs that released clients send, is EX 0. The first PHP client sends the seconds
        without EX: that number is ignored, as okq ignores it.

        Raises:
            ErrorReply: An option is unknown, has no value, or a wrong one.
        """
        queue, *rest = arguments
        if rest and rest[0].isdigit():
            del rest[0]
        given: dict[bytes, Any] = {}
        while rest:
            option = rest.pop(0).upper()
            if option not in _POP_OPTIONS:
                raise ErrorReply(
                    "ERR syntax error: QRPOP has the options EX, WAIT, COUNT, LIMIT, NOACK, CREATED and TELL, not "
                    f"{quoted(option)}"
                )
            read = _POP_OPTIONS[option]
            if read is not None and not rest:
                raise ErrorReply(f"ERR syntax error: {option.decode()} needs a value")
            given[option] = read is None or read(rest.pop(0))
        lease = 0.0 if b"NOACK" in given else given.get(b"EX", DEFAULT_LEASE)
        want = Want(int(lease * 1000), given.get(b"LIMIT", 0), b"CREATED" in given)
        return cls(queue, want, given.get(b"COUNT"), given.get(b"WAIT"), b"TELL" in given)


class Ack(NamedTuple):
    """QACK.

    Attributes:
        queue: The queue's name, as it came.
        claims: The events, as `EventSteps.send_settle` takes them.
        redo: Give them back.
    """

    queue: bytes
    claims: list[tuple[bytes, bytes]]
    redo: bool

    @classmethod
    def read(cls, arguments: Sequence[bytes]) -> Ack:
        """Read `queue id [id ...] [REDO]`. A last word REDO after an id is the option."""
        queue, *ids = arguments
        redo = len(ids) > 1 and ids[-1].upper() == b"REDO"
        return cls(queue, claims_of(ids[:-1] if redo else ids), redo)


def claims_of(ids: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return claims on events, whoever made them."""
    return [(one, b"") for one in ids]


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


_POP_OPTIONS: Final[dict[bytes, Callable[[bytes], Any] | None]] = {
    b"EX": lambda given: seconds(given, "expires"),
    b"WAIT": lambda given: seconds(given, "wait"),
    b"COUNT": lambda given: number(given, "count", MOST),
    b"LIMIT": lambda given: number(given, "limit", MOST_ATTEMPTS, least=0),
    **dict.fromkeys((b"NOACK", b"CREATED", b"TELL")),  # without a value
}
