"""Encodes commands as RESP, the protocol of Redis. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import hiredis

Argument = bytes | str | int

LARGE = 1 << 16
"""Arguments of at least this many bytes are written as they are, not copied into one piece with the others."""

_FEW = 16


class Head:
    """The first arguments of many commands, packed only once.

    Attributes:
        arguments: The first arguments of the command.
    """

    __slots__ = ("_bulks", "_count", "arguments")

    def __init__(self, *arguments: Argument) -> None:
        self.arguments = arguments
        self._count = len(arguments)
        self._bulks = _bulks(arguments)

    def pack(self, arguments: Sequence[Argument]) -> Sequence[bytes | memoryview]:
        """Return a packed command, given the rest of it: one piece, or several if it has large arguments."""
        count = self._count + len(arguments)
        if not is_large(arguments):
            return [b"*%d\r\n%b%b" % (count, self._bulks, _bulks(arguments))]
        pieces = [b"*%d\r\n%b" % (count, self._bulks)]
        for one in arguments:
            if isinstance(one, bytes) and len(one) >= LARGE:
                pieces[-1] += b"$%d\r\n" % len(one)
                pieces += (one, b"\r\n")
            else:
                pieces[-1] += _bulks((one,))
        return pieces


class Packed(Head):
    """A whole command whose arguments are packed already; they are not copied. (fakeredis does not understand it.)

    Args:
        count: How many arguments there are.
        pieces: The packed arguments.
    """

    __slots__ = ("_pieces",)

    def __init__(self, count: int, *pieces: bytes | memoryview) -> None:
        super().__init__()
        self._pieces = (b"*%d\r\n" % count, *pieces)

    def pack(self, arguments: Sequence[Argument]) -> Sequence[bytes | memoryview]:  # noqa: ARG002
        return self._pieces


def is_large(arguments: Sequence[Argument]) -> bool:
    """Whether there is a large argument among few. (Steps of many messages have small ones.)"""
    if len(arguments) > _FEW:
        return False
    try:  # each put passes here: its arguments all have a length, and to ask for types takes twice as long
        for one in arguments:
            if len(one) >= LARGE:  # type: ignore[arg-type]
                return True
    except TypeError:  # a number has no length
        for one in arguments:
            if isinstance(one, bytes) and len(one) >= LARGE:
                return True
    return False


def _bulks(arguments: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(arguments))  # type: ignore[arg-type]
    return packed[packed.index(b"\n") + 1 :]


NO_HEAD = Head()
