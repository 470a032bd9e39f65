"""Bytes become commands: feed what a client sent, and take its commands.

The rule that this module keeps: whatever a client sends, memory stays below `Limits.command` plus what was fed and not
taken, and each byte is looked at a fixed number of times. A client that breaks the protocol, or exceeds a limit, gets
a `ProtocolError`; its connection cannot go on after that, because where the next command begins is unknown.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from apressure import validation

MIB: Final = 1 << 20
_LONGEST_HEADER: Final = 32  # bytes of a line such as "*3" or "$1024", with its end
_PIECE: Final = 1 << 14  # bytes that are split into lines together
_DEPTH: Final = 1
_BLANKS: Final = b" \t\n\r\v\f\0"
_ESCAPES: Final = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


class ProtocolError(Exception):
    """The bytes are no command, or exceed a limit. The text is the error reply, without its `ERR`."""


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
        size: How many bytes the latest command has, all arguments together.
    """

    __slots__ = (
        "_arguments", "_at", "_buffer", "_bulk", "_error", "_line", "_lines", "_missing", "_searched", "_size",
        "_split", "limits", "size",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._buffer: bytes | bytearray = b""  # as it came, and a bytearray as soon as there is more to add to it
        self._at = 0  # where the part that was not parsed begins
        self._searched = 0  # up to here there is no end of the current line
        self._lines: list[bytes] = []  # the next bytes of the buffer, split at the ends of lines
        self._line = 0  # the one where the next command begins
        self._split = 0  # up to here the buffer was split into lines
        self._arguments: list[bytes] = []
        self._missing = 0  # arguments of the current command that have not come
        self._bulk = -1  # the length of the current argument, once known
        self._size = 0  # bytes of the current command's arguments
        self._error: ProtocolError | None = None
        self.size = 0

    @property
    def buffered(self) -> int:
        """How many bytes were fed and are not part of a command that was taken."""
        return len(self._buffer) - self._at + self._size

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
        try:
            command = None if self._missing else self._usual()
            if command is None:
                command = self._parse()
        except ProtocolError as error:
            self._error = error
            self._buffer, self._at, self._arguments, self._size, self._lines = b"", 0, [], 0, []
            raise
        if self._at == len(self._buffer):
            self._buffer, self._at, self._searched, self._split = b"", 0, 0, 0
        elif command is None and self._at:
            self._buffer = bytearray(self._buffer[self._at :])
            self._searched -= self._at
            self._split -= self._at
            self._at = 0
        return command

    def _parse(self) -> list[bytes] | None:
        while True:
            if not self._missing:
                if self._at >= len(self._buffer):
                    return None
                if self._buffer[self._at] != 0x2A:  # "*"
                    words = self._inline()
                    if words:
                        self.size = sum(map(len, words))
                        return words
                    if words is None:
                        return None
                    continue
                count = self._number(self.limits.arguments, "the number of arguments", negative=True)
                if count is None:
                    return None
                if count <= 0:
                    continue
                self._missing = count
            if not self._bulks():
                return None
            command, self._arguments, self.size, self._size = self._arguments, [], self._size, 0
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
                self._searched, self._line, self.size = self._at, end, size
                return arguments
        self._lines, self._line = [], 0  # the other way, up to the end of this piece
        return None

    def _bulks(self) -> bool:
        """Take the arguments that are complete. Return whether the command is."""
        buffer, arguments, limit = self._buffer, self._arguments, self.limits.bulk
        end = len(buffer)
        while self._missing:
            if self._bulk < 0:
                at = self._at
                if at >= end:
                    return False
                if buffer[at] != 0x24:  # "$"
                    self._refuse_argument(buffer[at])
                # The usual case of `_number`, without the call.
                stop = buffer.find(b"\r\n", at, at + _LONGEST_HEADER)
                digits = buffer[at + 1 : stop]
                if stop > 0 and digits.isdigit() and (length := int(digits)) <= limit:
                    self._at = stop + 2
                else:
                    number = self._number(limit, "the length of an argument")
                    if number is None:
                        return False
                    length = number
                if self._size + length > self.limits.command:
                    raise ProtocolError(
                        f"Protocol error: the command is longer than {self.limits.command} bytes; "
                        "send several smaller ones, or raise --max-command-size"
                    )
                self._bulk = length
            start, stop = self._at, self._at + self._bulk
            if stop + 2 > end:
                return False
            if buffer[stop] != 13 or buffer[stop + 1] != 10:
                raise ProtocolError("Protocol error: an argument is longer than its length says")
            arguments.append(bytes(buffer[start:stop]))
            self._size += self._bulk
            self._missing -= 1
            self._bulk = -1
            self._at = self._searched = stop + 2
        return True

    def _number(self, most: int, meaning: str, *, negative: bool = False) -> int | None:
        """Take a line such as `*3` or `$1024`, and return its number; None if the line is not complete."""
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\r\n", at, at + _LONGEST_HEADER)
        if end < 0:
            if len(buffer) - at >= _LONGEST_HEADER:
                raise ProtocolError(f"Protocol error: {meaning} is not a number")
            return None
        digits = buffer[at + 1 : end]
        self._at = self._searched = end + 2
        if digits.isdigit():
            number = int(digits)
            if number <= most:
                return number
            raise ProtocolError(f"Protocol error: {meaning} is {number}, and the limit is {most}")
        if negative and digits[:1] == b"-" and digits[1:].isdigit():
            return 0
        shown = bytes(digits).decode("ascii", "backslashreplace")
        raise ProtocolError(f"Protocol error: {meaning} must be a number, not {shown!r}")

    def _inline(self) -> list[bytes] | None:
        """Take a line of words; None if it is not complete."""
        end = self._buffer.find(b"\n", max(self._at, self._searched))
        if (len(self._buffer) if end < 0 else end) - self._at > self.limits.inline:
            raise ProtocolError(f"Protocol error: an inline command is longer than {self.limits.inline} bytes")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = self._searched = end + 1
        words = split_words(line)
        if len(words) > self.limits.arguments:
            raise ProtocolError(
                f"Protocol error: the number of arguments is {len(words)}, and the limit is {self.limits.arguments}"
            )
        return words

    @staticmethod
    def _refuse_argument(first: int) -> None:
        if first == 0x2A:
            raise ProtocolError(
                f"Protocol error: arrays are nested deeper than {_DEPTH}; a command is an array of bulk strings"
            )
        raise ProtocolError(f"Protocol error: an argument must begin with '$', not {chr(first)!r}")


def split_words(line: bytes) -> list[bytes]:
    r"""Split an inline command as Redis does: words, `"with \x00 escapes"` and `'without'`.

    Raises:
        ProtocolError: A quote has no end, or a word follows it without a space.
    """
    if b'"' not in line and b"'" not in line:
        return line.replace(b"\0", b" ").split()
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at] in _BLANKS:
            at += 1
        if at == end:
            return words
        word = bytearray()
        while at < end and line[at] not in _BLANKS:
            if line[at] in b"\"'":
                at = _quoted(line, at, word)
            else:
                word.append(line[at])
                at += 1
        words.append(bytes(word))


def _quoted(line: bytes, at: int, word: bytearray) -> int:
    """Add a quoted part to a word, and return the place after it."""
    quote = line[at]
    at += 1
    while at < len(line) and line[at] != quote:
        following = line[at + 1 : at + 2]
        if line[at] != 0x5C or not following or (quote == 0x27 and following != b"'"):
            word.append(line[at])
            at += 1
        elif quote == 0x22 and following == b"x" and _is_hex(line[at + 2 : at + 4]):
            word.append(int(line[at + 2 : at + 4], 16))
            at += 4
        else:
            word.append(_ESCAPES.get(following[0], following[0]) if quote == 0x22 else following[0])
            at += 2
    if at == len(line) or (at + 1 < len(line) and line[at + 1] not in _BLANKS):
        raise ProtocolError("Protocol error: unbalanced quotes in an inline command")
    return at + 1


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)
