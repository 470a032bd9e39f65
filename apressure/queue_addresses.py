"""Reads the address of a queue: which kind it is, its name, and its server. No I/O, and no queue is made.

- `orders`: an AsyncQueue on the server of the environment. `queue:orders` is the same.
- `events:orders`: an EventQueue. `tasks:orders`: a TaskQueue. `files:spool/orders`: a FileQueue, by its path.
- `redis://host:6379/0/events:orders`: the same with a server; the path of its URL ends with the queue.
- `okq://host:4777/orders`: a queue of events on an okq server. `file:///var/spool/orders`: a FileQueue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import unquote

from apressure import validation
from apressure.connection.addresses import QUOTE
from apressure.events.remote.address import is_okq

Kind = Literal["queue", "events", "tasks", "files"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NEARLY_A_URL: Final = re.compile(r"(redis|rediss|unix|embedded|okq|okqs|file)([+][a-z]+)?:/", re.IGNORECASE)
_SERVERS: Final = (
    "redis://host:6379/0/orders, redis+sentinel://, redis+cluster://, unix://, embedded:///dir/orders or okq://"
)


class QueueAddress(NamedTuple):
    """Where a queue is. `str()` is its address without the server, which may have a password in its URL.

    Attributes:
        kind: `"queue"` (an AsyncQueue), `"events"`, `"tasks"` or `"files"`.
        name: The queue's name; of a queue in a directory its path.
        url: The server's URL; None for the server of the environment, and for a queue in a directory.
    """

    kind: Kind
    name: str
    url: str | None = None

    def __str__(self) -> str:
        alone = self.kind == "queue" and self.name.partition(":")[0] not in KINDS
        if alone and not (_URL.match(self.name) or _NEARLY_A_URL.match(self.name)):
            return self.name
        return f"{self.kind}:{self.name}"


def read(address: str, default: Kind = "queue", url: str | None = None) -> QueueAddress:
    """Return what an address says.

    Args:
        address: The address.
        default: The kind of a queue whose address names none. On an okq server it is always `"events"`.
        url: The server of an address that names none.

    Raises:
        TypeError: The address is not a string.
        ValueError: It is not an address; the message says what to write, and shows no password.
    """
    validation.text(address, "address")
    if not _URL.match(address):
        if _NEARLY_A_URL.match(address):  # which may have a password
            scheme = address.partition(":")[0]
            raise ValueError(
                f"a URL has two slashes. Write {scheme}://…, or queue:{scheme}:… for a queue with such a name"
            )
        kind, name = _kind_of(address, default, url)
        return QueueAddress(kind, name, None if kind == "files" else url)
    scheme, rest = address.split("://", 1)
    if scheme.lower() == "file":
        return QueueAddress("files", _path_of(rest))
    if scheme.lower() in KINDS:
        raise ValueError(f"{scheme}:// is no server. Write {scheme}:NAME, or the URL of the server and {scheme}:NAME")
    if scheme.lower() not in _SPLITS:
        raise ValueError(
            f"an address cannot begin with {scheme}://. Write {_SERVERS}, file:///var/spool/orders for a directory, or "
            f"queue:{scheme}:… for a queue with such a name"
        )
    server, queue = _split(scheme, rest)
    kind, name = _kind_of(queue, default, server)
    if kind == "files":
        raise ValueError("a queue in a directory has no server. Write files:spool/orders, or file:///var/spool/orders")
    return QueueAddress(kind, _unquoted(name), server)


def read_pattern(pattern: str, url: str | None = None) -> list[QueueAddress]:
    """Return what the address of several queues, such as `orders*` or `events:*`, may mean: one for each kind.

    Without a kind, it is about every kind that is on a server. The names are the patterns.

    Raises:
        TypeError, ValueError: As for `read`.
    """
    on_servers: tuple[Kind, ...] = ("queue", "events", "tasks")
    return list(dict.fromkeys(read(pattern, kind, url) for kind in on_servers))


def lasting(address: QueueAddress) -> QueueAddress:
    """Return an address as it is.

    Raises:
        ValueError: Its server ends with the program that starts it.
    """
    check_lasting(address.url)
    return address


def check_lasting(url: str | None) -> None:
    """Raise a ValueError if a server ends with the program that starts it."""
    if url == "embedded://":
        raise ValueError(
            "embedded:// starts a server that ends with this command, and its queues with it. "
            "Use embedded:///some/dir, which keeps the queues, or the URL of a server"
        )


def _kind_of(queue: str, default: Kind, url: str | None) -> tuple[Kind, str]:
    """Return the kind and the name that an address without its server says."""
    prefix, colon, name = queue.partition(":")
    said: Kind | None = next((kind for kind in KINDS if colon and kind == prefix), None)
    if said is None:
        name = queue
    if not name:
        raise ValueError(f"the address names no queue. Write {f'{said}:orders' if said else 'the name of one: orders'}")
    if not is_okq(url) or said == "files":
        return said or default, name
    if said not in (None, "events"):
        raise ValueError(
            f"an okq server has queues of events only, not {said}:{name}. Write its name alone, or give the URL of the "
            "Redis server (redis://…)"
        )
    return "events", name


def _split(scheme: str, rest: str) -> tuple[str, str]:
    """Return the URL of the server, and what follows it. Errors show nothing that may be a part of a password."""
    rest, mark, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if ("@" in path and "@" not in authority) or "#" in rest or "@" in query.partition("=")[0]:
        raise ValueError(f"the address is not valid: {QUOTE}, also in the name of a queue")
    place, queue = _SPLITS[scheme.lower()](path)
    if not queue or not slash:
        raise ValueError(f"the URL names no queue. Write the queue behind the server: {_EXAMPLES[scheme.lower()]}")
    return f"{scheme}://{authority}{place}{mark}{query}", queue


def _after_database(path: str) -> tuple[str, str]:
    """`[0/]events:orders`: a number is the database."""
    database, _, rest = path.partition("/")
    if database.isascii() and database.isdigit():
        return f"/{database}", rest
    return "", path


def _after_service(path: str) -> tuple[str, str]:
    """`mymaster/[0/]events:orders`: the primary's name, and then the same."""
    service, _, rest = path.partition("/")
    place, queue = _after_database(rest)
    return f"/{service}{place}", queue


def _last(path: str) -> tuple[str, str]:
    """`some/directory/events:orders`: what is before the last part is the place."""
    place, slash, queue = path.rpartition("/")
    if queue.endswith((".sock", ".socket")):  # the path of the socket alone
        return path, ""
    return f"/{place}" if slash else "", queue


def _all(path: str) -> tuple[str, str]:
    return "", path


_SPLITS: Final[dict[str, Callable[[str], tuple[str, str]]]] = {
    "redis": _after_database, "rediss": _after_database, "redis+cluster": _after_database,
    "rediss+cluster": _after_database, "redis+sentinel": _after_service, "rediss+sentinel": _after_service,
    "unix": _last, "embedded": _last, "okq": _all, "okqs": _all, "okq+unix": _last,
}  # fmt: skip
"""Where the path of a URL is the server's, and where the queue's."""

_EXAMPLES: Final = {
    scheme: f"{scheme}://{place}/orders"
    for schemes, place in (
        (("redis", "rediss"), "host:6379/0"),
        (("redis+cluster", "rediss+cluster"), "host:6379,host:6379"),
        (("redis+sentinel", "rediss+sentinel"), "host:26379,host:26379/mymaster/0"),
        (("unix", "okq+unix"), "/path/to/the.sock"),
        (("embedded",), "/some/directory"),
        (("okq", "okqs"), "host:4777"),
    )
    for scheme in schemes
}


def _path_of(rest: str) -> str:
    """Return the path of a `file://` URL."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not path or "?" in rest or "#" in rest:
        raise ValueError(
            "a file:// URL has three slashes and an absolute path, with ? as %3F and # as %23. Write "
            "file:///var/spool/orders, or files:spool/orders for a relative path"
        )
    return _unquoted(slash + path)


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogateescape")
