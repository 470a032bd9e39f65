"""The wire format of Redis (RESP2 and RESP3), as a server sees it: bytes become commands, replies become bytes.

The rule that this module keeps: no I/O, no clock, no event loop. Bytes are fed in and taken out. Whatever a client
sends, memory stays below `Limits.command` plus what was fed and not taken, and each byte is looked at a fixed number of
times. A client that breaks the protocol, or exceeds a limit, gets a `ProtocolError`; its connection cannot go on after
that, because where the next command begins is unknown.

| a reply | is sent as |
| --- | --- |
| `bytes` | a bulk string, binary safe |
| `str` | a simple string, such as `OK` |
| `int` | an integer |
| `None` | nil: a null bulk string, in RESP3 a null |
| `list` | an array |
| `dict` | a map, in RESP2 an array of keys and values |
| `ErrorReply` | an error |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

from apressure import validation

MIB: Final = 1 << 20
_LONGEST_HEADER: Final = 32  # bytes of a line such as "*3" or "$1024", with its end
_PIECE: Final = 1 << 14  # bytes that are split into lines together
_ARRAY, _BULK = b"*$"  # the first bytes of an array and of a bulk string
_BLANKS: Final = b" \t\n\r\v\f\0"
_WORD: Final = re.compile(rb"""([^\s\0"']*+)(?:"((?:\\.|[^"\\])*+)"|'((?:\\'|[^'])*+)')?(?:[\s\0]++|\Z)""", re.DOTALL)
"""A word of an inline command, perhaps with a part in quotes at its end."""
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class ProtocolError(Exception):
    """The bytes are no command, or exceed a limit. The text is the error reply, without its `ERR`."""

    def __str__(self) -> str:
        return f"Protocol error: {self.args[0]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send. A command that exceeds a limit ends the connection, after an error reply.

    Attributes:
        bulk: The longest argument, in bytes: the largest contents of an event.
        command: The longest command, in bytes: all of its arguments together.
        arguments: The most arguments of one command.
        inline: The longest inline command, in bytes: a line as one types it into telnet.
    """

    bulk: int = 64 * MIB
    command: int = 128 * MIB
    arguments: int = 100_000
    inline: int = 64 * 1024

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            validation.whole(getattr(self, field.name), field.name)


class RequestParser:
    """Takes bytes in pieces of any size, and gives the commands in them, one at a time.

    Args:
        limits: What a client may send.

    Attributes:
        limits: As given; it may be changed between two commands.
        taken: How many bytes the arguments of all commands have that were taken; one may set it to 0.
    """

    __slots__ = (
        "_at", "_buffer", "_commands", "_error", "_held", "_line", "_lines", "_split", "_unfinished", "limits", "taken",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._buffer: bytes | bytearray = b""  # as it came, and a bytearray as soon as there is more to add to it
        self._at = 0  # where the part that was not parsed begins
        self._lines: list[bytes] = []  # the next bytes of the buffer, split at the ends of lines
        self._line = 0  # the one where the next command begins
        self._split = 0  # up to here the buffer was split into lines
        self._held = 0  # bytes of the arguments of the command that `_commands` is in the middle of
        self._commands: Iterator[list[bytes] | None] | None = None  # once it is needed: most clients do without
        self._unfinished = False  # whether it is in the middle of one
        self._error: ProtocolError | None = None
        self.taken = 0

    @property
    def buffered(self) -> int:
        """How many bytes were fed and are not part of a command that was taken."""
        return len(self._buffer) - self._at + self._held

    def feed(self, data: bytes) -> None:
        """Add bytes. After a `ProtocolError` they are dropped."""
        if self._error is not None:
            return
        if not self._buffer:
            self._buffer = data
            return
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer)
        self._buffer += data

    def next_command(self) -> list[bytes] | None:
        """Return the next complete command, its name first, or None if more bytes are needed.

        Empty commands (an empty line, `*0`, `*-1`) are skipped.

        Raises:
            ProtocolError: The bytes are no command, or exceed a limit. Each later call raises it again.
        """
        if self._error is not None:
            raise self._error
        if not self._buffer:
            return None
        command = None if self._unfinished else self._usual()
        if command is None:
            self._commands = self._commands or self._any_commands()
            try:
                command = next(self._commands)
            except ProtocolError as error:
                self._error = error
                self._buffer, self._at, self._held, self._lines = b"", 0, 0, []
                raise
            self._unfinished = command is None
        if self._at == len(self._buffer):
            self._buffer, self._at, self._split = b"", 0, 0
        elif command is None and self._at:
            self._buffer = bytearray(self._buffer[self._at :])
            self._split -= self._at
            self._at = 0
        return command

    def _usual(self) -> list[bytes] | None:
        """Take a command that is all there and whose arguments are lines; None if the next one is not like that."""
        lines, at = self._lines, self._line
        if at >= len(lines):
            begin = self._at
            stop = self._buffer.rfind(b"\r\n", begin, begin + _PIECE) if begin >= self._split else -1
            if stop < 0:
                return None
            lines = self._lines = bytes(self._buffer[begin:stop]).split(b"\r\n")
            at, self._split = 0, stop
        head = lines[at]
        count = head[1:]
        if head[:1] == b"*" and len(head) < 8 and count.isdigit() and 0 < int(count) <= self.limits.arguments:
            end = at + 1 + 2 * int(count)
            lengths, arguments = lines[at + 1 : end : 2], lines[at + 2 : end : 2]
            size = sum(map(len, arguments))
            if (
                end <= len(lines)
                and lengths == [b"$%d" % len(one) for one in arguments]
                and size <= min(self.limits.bulk, self.limits.command)
            ):
                if end == len(lines):
                    self._at = self._split + 2
                else:
                    self._at += len(head) + sum(map(len, lengths)) + size + 2 * (end - at)
                self._line = end
                self.taken += size
                return arguments
        self._lines, self._line = [], 0  # the other way, up to the end of this piece
        return None

    def _any_commands(self) -> Iterator[list[bytes] | None]:
        """Give each command, and None while bytes are missing."""
        while True:
            if self._at >= len(self._buffer):
                yield None
                continue
            if self._buffer[self._at] != _ARRAY:
                if words := (yield from self._inline()):
                    self.taken += sum(map(len, words))
                    yield words
                continue
            while (count := self._number(self.limits.arguments, "the number of arguments", _ARRAY)) is None:
                yield None
            arguments: list[bytes] = []
            while len(arguments) < count:
                while (length := self._number(self.limits.bulk, "the length of an argument")) is None:
                    yield None
                if self._held + length > self.limits.command:
                    what = f"the command is longer than {self.limits.command} bytes"
                    raise ProtocolError(f"{what}; send several smaller ones, or raise --max-command-size")
                while (stop := self._at + length) + 2 > len(self._buffer):
                    yield None
                if self._buffer[stop : stop + 2] != b"\r\n":
                    raise ProtocolError("an argument is longer than its length says")
                arguments.append(bytes(self._buffer[self._at : stop]))
                self._held += length
                self._at = stop + 2
            if arguments:
                self.taken += self._held
                self._held = 0
                yield arguments

    def _number(self, most: int, meaning: str, mark: int = _BULK) -> int | None:
        """Take a line such as `*3` or `$1024`, and return its number; None if the line is not complete."""
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\r\n", at, at + _LONGEST_HEADER)
        digits = buffer[at + 1 : end]
        if end > 0 and buffer[at] == mark and digits.isdigit() and (number := int(digits)) <= most:
            self._at = end + 2
            return number
        if at == len(buffer):
            return None
        if buffer[at] != mark:
            if buffer[at] == _ARRAY:
                raise ProtocolError("arrays are nested deeper than 1; a command is an array of bulk strings")
            raise ProtocolError(f"an argument must begin with '$', not {chr(buffer[at])!r}")
        if end < 0:
            if len(buffer) - at >= _LONGEST_HEADER:
                raise ProtocolError(f"{meaning} is not a number")
            return None
        if digits.isdigit():
            raise ProtocolError(f"{meaning} is {int(digits)}, and the limit is {most}")
        if mark == _ARRAY and digits[:1] == b"-" and digits[1:].isdigit():
            self._at = end + 2
            return 0
        shown = bytes(digits).decode("ascii", "backslashreplace")
        raise ProtocolError(f"{meaning} must be a number, not {shown!r}")

    def _inline(self) -> Generator[None, None, list[bytes]]:
        """Take a line of words."""
        limits, searched = self.limits, 0
        while True:
            end = self._buffer.find(b"\n", self._at + searched)
            searched = (len(self._buffer) if end < 0 else end) - self._at
            if searched > limits.inline:
                raise ProtocolError(f"an inline command is longer than {limits.inline} bytes")
            if end >= 0:
                break
            yield
        line = bytes(self._buffer[self._at : end])
        self._at = end + 1
        words = split_words(line)
        if len(words) > limits.arguments:
            raise ProtocolError(f"the number of arguments is {len(words)}, and the limit is {limits.arguments}")
        return words


def split_words(line: bytes) -> list[bytes]:
    r"""Split an inline command as Redis does: words, `"with \x00 escapes"` and `'without'`.

    Raises:
        ProtocolError: A quote has no end, or a word follows it without a space.
    """
    words: list[bytes] = []
    line, at = line.strip(_BLANKS), 0
    while at < len(line):
        word = _WORD.match(line, at)
        if word is None:
            raise ProtocolError("unbalanced quotes in an inline command")
        plain, escaped, literal = word.groups(b"")
        words.append(plain + _ESCAPE.sub(_unescaped, escaped) + literal.replace(rb"\'", b"'"))
        at = word.end()
    return words


def _unescaped(escape: re.Match[bytes]) -> bytes:
    digits, character = escape.groups()
    return bytes.fromhex(digits.decode()) if digits else _ESCAPED.get(character, character)


Reply = Any
"""See the table above. (Recursive types make callers cast.)"""

NOTHING: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
_ENDS: Final = str.maketrans("\r\n", "  ")


class ErrorReply(Exception):
    """An error that the client gets, such as `ERR missing args`: its text is the reply, the first word the code."""


def encode(reply: Reply, protocol: int = 2) -> bytes:
    """Return a reply as bytes.

    Args:
        reply: One of the types in the table of this module.
        protocol: The version of RESP, 2 or 3.

    Raises:
        TypeError: The reply, or a part of it, has another type.
    """
    if type(reply) is str and reply == "OK":
        return b"+OK\r\n"
    pieces: list[bytes] = []
    _encode(reply, protocol, pieces.append)
    return b"".join(pieces)


def _encode(reply: Reply, protocol: int, add: Any) -> None:
    if isinstance(reply, bytes):
        add(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif isinstance(reply, str):
        add(b"+%b\r\n" % _line(reply))
    elif reply is None:
        add(NOTHING[protocol])
    elif isinstance(reply, int) and not isinstance(reply, bool):  # a truth value is 0 or 1 on the wire
        add(b":%d\r\n" % reply)
    elif isinstance(reply, ErrorReply):
        add(b"-%b\r\n" % _line(str(reply)))
    elif isinstance(reply, dict):
        add(b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % (2 * len(reply)))
        for key, value in reply.items():
            _encode(key, protocol, add)
            _encode(value, protocol, add)
    elif isinstance(reply, (list, Sequence)):  # (the usual one first, since an abstract class takes longer)
        add(b"*%d\r\n" % len(reply))
        for one in reply:
            _encode(one, protocol, add)
    else:
        raise TypeError(f"a reply cannot be a {type(reply).__name__}")


def _line(text: str) -> bytes:
    # A name in an error may contain anything; an end of line would begin a reply of its own.
    return text.translate(_ENDS).encode("utf-8", "surrogateescape")
