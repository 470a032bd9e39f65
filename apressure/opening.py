"""Opens a queue of any kind by its address: `queue_addresses` reads the address, and here the object is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from apressure.codecs import Codec, UntypedCodec
from apressure.queue_addresses import QueueAddress, read

if TYPE_CHECKING:
    from apressure.connection.client import Client
    from apressure.connection.settings import ClientOptions
    from apressure.events.queue import EventQueue
    from apressure.files.options import FileQueueOptions
    from apressure.files.queue import FileQueue
    from apressure.pressure.queue import AsyncQueue
    from apressure.tasks.queue import TaskQueue

    # Here, since it would bring all of the room `files` to programs that use a server.
    class OpenOptions(ClientOptions, FileQueueOptions, total=False):
        """The options of every kind of queue. Each kind takes those that its class takes.

        Attributes:
            client: A `Client` to share with other queues, instead of a server's URL. Not for a `FileQueue`.
            on_orphan: See `TaskQueue`.
            result_ttl: See `TaskQueue`.
        """

        client: Client | None
        on_orphan: Literal["retry", "fail"]
        result_ttl: float | None


T = TypeVar("T")


@overload
def open_queue(
    address: str, *, codec: None = ..., **options: Unpack[OpenOptions]
) -> AsyncQueue[bytes] | EventQueue[bytes] | FileQueue[bytes] | TaskQueue[Any]: ...
@overload
def open_queue(
    address: str, *, codec: Literal["raw"], **options: Unpack[OpenOptions]
) -> AsyncQueue[bytes] | EventQueue[bytes] | FileQueue[bytes] | TaskQueue[bytes]: ...
@overload
def open_queue(
    address: str, *, codec: Literal["text"], **options: Unpack[OpenOptions]
) -> AsyncQueue[str] | EventQueue[str] | FileQueue[str] | TaskQueue[str]: ...
@overload
def open_queue(
    address: str, *, codec: UntypedCodec, **options: Unpack[OpenOptions]
) -> AsyncQueue[Any] | EventQueue[Any] | FileQueue[Any] | TaskQueue[Any]: ...
@overload
def open_queue(
    address: str, *, codec: Codec[T] | type[T], **options: Unpack[OpenOptions]
) -> AsyncQueue[T] | EventQueue[T] | FileQueue[T] | TaskQueue[T]: ...
def open_queue(
    address: str, *, codec: Codec[Any] | type[Any] | str | None = None, **options: Unpack[OpenOptions]
) -> Any:
    """Return the queue that an address names, as the constructor of its class would.

    The address may come from a configuration: a program that uses what all kinds have runs on each of them. A type
    checker cannot know the kind: `isinstance(queue, AsyncQueue)` tells it. No I/O happens before `async with`.

    Args:
        address: `"orders"` is an `AsyncQueue`, `"events:orders"` an `EventQueue`, `"tasks:orders"` a `TaskQueue`, and
            `"files:spool/orders"` a `FileQueue` by its path. `"queue:…"` is an `AsyncQueue` whose name begins with one
            of these words. A URL names the server, too, and ends with one of the above:
            `redis://host:6379/0/events:orders`, also with `rediss`, `redis+sentinel`, `redis+cluster`,
            `unix:///path/to/the.sock/orders` and `embedded:///some/dir/orders` (`embedded:///orders` for a private
            server). `okq://host:4777/orders` is a queue of events on an okq server, and `file:///var/spool/orders` a
            directory. In a URL, `/` in a name of the last four is `%2F`, and `?`, `#`, `@` and `%` are `%3F`, `%23`,
            `%40` and `%25`.
        codec: What items are, as for the class.
        **options: The options of the class, such as `url=` or `client=` for an address without a server,
            `max_attempts=`, or `bound=` of a `FileQueue`.

    Raises:
        TypeError: The address is not a string, or the kind has no such option.
        ValueError: The address or an option is invalid; the message says what to write.

    Example:
        >>> async with open_queue("events:orders", url="redis://127.0.0.1:6379/0") as queue:
        ...     await queue.put(b"first")
    """
    chosen: dict[str, Any] = {**options, "codec": codec}
    url = chosen.pop("url", None)
    found = read(address, url=url)
    if url is not None:
        if found.url != url:
            what = "a queue in a directory has no server" if found.kind == "files" else "the address names the server"
            raise TypeError(f"{what}: leave out url=")
        if chosen.get("client") is not None:
            raise TypeError("give either client= or url=: the client has its own settings")
    return make(found, chosen)


def make(address: QueueAddress, options: dict[str, Any]) -> Any:
    """Return the object for an address that was read; each class is imported when it is needed."""
    if address.kind == "files":
        from apressure.files.queue import FileQueue

        return FileQueue(address.name, **options)
    if address.url is not None:
        options = {"url": address.url, **options}
    if address.kind == "events":
        from apressure.events.queue import EventQueue

        return EventQueue(address.name, **options)
    if address.kind == "tasks":
        from apressure.tasks.queue import TaskQueue

        return TaskQueue(address.name, **options)
    from apressure.pressure.queue import AsyncQueue

    return AsyncQueue(address.name, **options)
