"""Replies become bytes, in RESP2 or RESP3.

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

from collections.abc import Sequence
from typing import Any, Final

Reply = Any
"""See the table above. (Recursive types make callers cast.)"""

NOTHING: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
_ENDS: Final = str.maketrans("\r\n", "  ")


class ErrorReply(Exception):
    """An error that the client gets, such as `ERR missing args`. Its first word is the code.

    Attributes:
        text: The whole reply.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


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
    elif isinstance(reply, bool):
        raise TypeError("a truth value is an integer on the wire: send 0 or 1")
    elif isinstance(reply, int):
        add(b":%d\r\n" % reply)
    elif isinstance(reply, ErrorReply):
        add(b"-%b\r\n" % _line(reply.text))
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
