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
        bulks: The same, packed.
    """

    __slots__ = ("arguments", "bulks")

    def __init__(self, *arguments: Argument) -> None:
        self.arguments = arguments
        self.bulks = _bulks(arguments) if arguments else b""


NO_HEAD = Head()


def pack(head: Head, arguments: Sequence[Argument]) -> list[bytes]:
    """Return a packed command: one piece, or several if it has large arguments."""
    count = len(head.arguments) + len(arguments)
    if is_large(arguments):
        return _pack_large(count, head, arguments)
    return [b"*%d\r\n%b%b" % (count, head.bulks, _bulks(arguments))]


def is_large(arguments: Sequence[Argument]) -> bool:
    """Whether there is a large argument among few. (Steps of many messages have small ones.)"""
    if len(arguments) <= _FEW:
        for one in arguments:
            if isinstance(one, bytes) and len(one) >= LARGE:
                return True
    return False


def _pack_large(count: int, head: Head, arguments: Sequence[Argument]) -> list[bytes]:
    pieces = [b"*%d\r\n%b" % (count, head.bulks)]
    for one in arguments:
        if isinstance(one, bytes) and len(one) >= LARGE:
            pieces[-1] += b"$%d\r\n" % len(one)
            pieces += (one, b"\r\n")
        else:
            pieces[-1] += _bulks((one,))
    return pieces


def _bulks(arguments: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(arguments))  # type: ignore[arg-type]
    return packed[packed.index(b"\n") + 1 :]
