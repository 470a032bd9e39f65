"""The arguments of the commands for queues: read and checked, no I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from apressure import logs
from apressure.core import limiting
from apressure.core.administration import MAX_BOUND
from apressure.events.engine.steps import MAX_EVENTS, Claim, Want
from apressure.events.server.wire import ErrorReply

DEFAULT_LEASE: Final = 30.0
"""Seconds that a consumer has for QACK, if QRPOP has no EX (specification, "QRPOP")."""
LONGEST: Final = 10 * 365 * 86400.0
"""Seconds: the longest EX, WAIT, timeout or extension."""
MOST: Final = 1_000
"""The most events of one QRPOP with COUNT."""
MOST_ATTEMPTS: Final = 10**12
DAY_MS: Final = 86_400_000
_LIMITS: Final = ("count", "per", "burst", "concurrency", "held", "bound")
LONGEST_ERROR: Final = 1_000
"""Bytes of an error of QFAIL and QLATER."""

Arguments = Sequence[bytes]
"""What stands behind the name of a queue."""


class Push(NamedTuple):
    """QLPUSH, QRPUSH or QDELAY.

    Attributes:
        events: Ids and contents, and for QDELAY when each is due; the first one is pushed first.
        noblock: Answer as soon as possible.
        nowait: Do not wait for room.
        created: The queue must have been created.
        back: They were popped before, and go back: neither the bound nor the end of the queue matters.
    """

    events: Sequence[tuple[bytes, ...]]
    noblock: bool
    nowait: bool = False
    created: bool = False
    back: bool = False

    @classmethod
    def read(cls, arguments: Arguments, delayed: bool = False, front: bool = False) -> Push:
        """Read `id contents [id contents ...] [NOBLOCK | NOWAIT | CREATED]`; CREATED does not wait either.

        With `front`, BACK is an option, too. With `delayed`, `when id contents [id contents ...] [CREATED]`, which does
        not wait for room.

        Raises:
            ErrorReply: An id has no contents, or the option is unknown, or the time is wrong.
        """
        due = (due_time(arguments[0], expire=True),) if delayed else ()
        options = (b"CREATED",) if delayed else (b"NOBLOCK", b"NOWAIT", b"CREATED", *((b"BACK",) if front else ()))
        rest = [*arguments[len(due) :]]
        option = rest.pop().upper() if len(rest) % 2 == 1 else b""
        if option and option not in options:
            wrong = ", nor ".join(word.decode() for word in options)
            raise ErrorReply(f"ERR syntax error: the last argument is neither {wrong}, nor the contents of an event")
        events = [(*pair, *due) for pair in zip(rest[::2], rest[1::2], strict=True)]
        created = option == b"CREATED"
        return cls(events, option == b"NOBLOCK", delayed or created or option == b"NOWAIT", created, option == b"BACK")

    # What the client is told, given a letter for each event that was looked at: `k` pushed, `d` duplicate.

    def duplicate(self, letters: bytes | bytearray) -> str:
        """Return the error for events whose ids are in the queue already."""
        error = f"ERR duplicate event {self.events[letters.index(b'd')][0].decode('utf-8', 'surrogateescape')}"
        if len(letters) == 1:
            return error
        return (
            f"{error} ({letters.count(b'd')} of {len(letters)} events are in the queue already; the others were added)"
        )

    def added(self, letters: bytes | bytearray) -> str:
        """Return how many events were added."""
        return f"{letters.count(b'k')} of {len(self.events)} events were added"

    def full(self, letters: bytes | bytearray) -> str:
        """Return the error for a queue without room for all events."""
        if self.noblock:
            return f"ERR queue full: {self.added(letters)}"
        return f"ERR queue full: the first {len(letters)} of {len(self.events)} events are in the queue"


class Pop(NamedTuple):
    """QRPOP.

    Attributes:
        want: What the step is told beside the number of events.
        most: How many events at most; None for one that is not in an array.
        wait: Seconds to wait for an event, and to say that the queue is closed; None for neither.
        tell: Say how often each event was delivered, or why there is none.
    """

    want: Want
    most: int | None = None
    wait: float | None = None
    tell: bool = False

    @classmethod
    def read(cls, arguments: Arguments) -> Pop:
        """Read the options EX, WAIT, COUNT and LIMIT with a number, NOACK, CREATED and TELL, in any order.

        NOACK, a word of older okqs that released clients send, is EX 0. The first PHP client sends the seconds
        without EX: that number is ignored, as okq ignores it.

        Raises:
            ErrorReply: An option is unknown, has no value, or a wrong one.
        """
        rest = [*arguments]
        if rest and rest[0].isdigit():
            del rest[0]
        given: dict[bytes, Any] = {}
        while rest:
            option = rest.pop(0).upper()
            if option not in _POP_OPTIONS:
                known = "EX, WAIT, COUNT, LIMIT, NOACK, CREATED and TELL"
                raise ErrorReply(f"ERR syntax error: QRPOP has the options {known}, not {quoted(option)}")
            read = _POP_OPTIONS[option]
            if read is not None and not rest:
                raise ErrorReply(f"ERR syntax error: {option.decode()} needs a value")
            given[option] = read is None or read(rest.pop(0))
        lease = 0.0 if b"NOACK" in given else given.get(b"EX", DEFAULT_LEASE)
        want = Want(int(lease * 1000), given.get(b"LIMIT", 0), b"CREATED" in given)
        return cls(want, given.get(b"COUNT"), given.get(b"WAIT"), b"TELL" in given)


def read_ack(arguments: Arguments) -> tuple[list[Claim], bool]:
    """Read `id [id ...] [REDO]`, and return claims on the events, and whether to give them back.

    A last word REDO after an id is the option.
    """
    redo = len(arguments) > 1 and arguments[-1].upper() == b"REDO"
    return claims_of(arguments[:-1] if redo else arguments), redo


def claims_of(ids: Sequence[bytes]) -> list[Claim]:
    """Return claims on events, whoever made them."""
    return [(one, b"") for one in ids]


def chunks(whole: Sequence[Any]) -> list[Sequence[Any]]:
    """Split events, or claims on them, into what single steps may have."""
    return [whole[at : at + MAX_EVENTS] for at in range(0, len(whole), MAX_EVENTS)]


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


def due_time(given: bytes, expire: bool = False) -> bytes:
    """Return when events are due, as `Due.encoded`: milliseconds from now, or `@` and milliseconds since 1970.

    A time that has passed is now. With `expire`, `!` and the milliseconds until they expire may follow.

    Raises:
        ErrorReply: It is neither, or more than ten years away; since clocks differ, a day more for an absolute time.
    """
    if expire and b"!" in given:
        when, _, expires = given.partition(b"!")
        if b"@" in expires or expires.strip(b"0") == b"":
            raise ErrorReply(f"ERR bad when value: {quoted(given)} has no milliseconds behind the !")
        return due_time(when) + b"!" + due_time(expires)
    digits, most = given.removeprefix(b"@"), int(LONGEST * 1000)
    if digits != given:
        most += int(time.time() * 1000) + DAY_MS
    if not digits.isdigit() or len(digits) > 15 or int(digits) > most:
        known = f"milliseconds from now (up to {LONGEST * 1000:.0f}), nor @ and milliseconds since 1970"
        raise ErrorReply(f"ERR bad when value: {quoted(given)} is neither {known}, within ten years")
    return given


def errors_of(pairs: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """Return claims on events, whoever made them, each with why it failed, of `id error [id error ...]`.

    Raises:
        ErrorReply: An id has no error, or an error is too long.
    """
    if len(pairs) % 2:
        raise ErrorReply("ERR missing args")
    if (longest := max(map(len, pairs[1::2]))) > LONGEST_ERROR:
        raise ErrorReply(f"ERR bad error value: it has {longest} bytes, and the most is {LONGEST_ERROR}")
    return [(event, b"", error) for event, error in zip(pairs[::2], pairs[1::2], strict=True)]


def limits_of(pairs: Sequence[bytes]) -> dict[str, int | None]:
    """Return changes of limits of `name value [name value ...]`; 0 or nothing removes one. Or that of the bound, alone.

    Raises:
        ErrorReply: A name is unknown or has no value, or a value is wrong, or a rate has no time.
    """
    if len(pairs) % 2:
        raise ErrorReply("ERR missing args")
    changes: dict[str, int | None] = {}
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        word = name.lower().decode("utf-8", "backslashreplace")
        if word not in _LIMITS:
            raise ErrorReply(f"ERR syntax error: QLIMIT has the limits {', '.join(_LIMITS)}, not {quoted(name)}")
        most = MAX_BOUND if word == "bound" else limiting.MOST
        changes[word] = number(value or b"0", word, most, least=0) or (0 if word in ("held", "bound") else None)
    if "bound" in changes and len(changes) > 1:
        raise ErrorReply("ERR syntax error: QLIMIT changes the bound alone")
    count, per = changes.get("count"), changes.get("per")
    if (count is None) != (per is None) or ("burst" in changes) > ("count" in changes):
        raise ErrorReply("ERR a rate is given as a whole: count, per (in milliseconds), and perhaps burst")
    if count is not None and per is not None and count > limiting.FASTEST * per:
        raise ErrorReply(f"ERR bad count value: a rate can be up to {limiting.FASTEST * 1000} events a second")
    if "count" in changes or "per" in changes:
        changes |= {"count": count, "per": per, "burst": changes.get("burst") if count else None}
    return changes


def quoted(given: bytes) -> str:
    """Return an argument for an error: short, on one line, in double quotes."""
    shown = logs.escaped(given[:64].decode("utf-8", "backslashreplace"))
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
