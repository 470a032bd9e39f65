"""Options become `Settings`: everything that a client needs to know, checked, no I/O. `parsing` finds the server."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict
from urllib.parse import unquote, urlparse

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.connection.addresses import PARTS, SENTINEL_PARTS, Address

DEFAULT_PREFIX = "__pressure__"
MAX_NAME = 4096
"""The longest name of a queue in bytes, with its prefix."""
MAX_MESSAGE_SIZE = 512 * 1024 * 1024
"""The largest message in bytes that Redis takes by default (`proto-max-bulk-len`)."""

RECONNECT_BACKOFF = Backoff(first=0.05, most=1.0)
"""The pauses before a connection that was lost, or could not be opened, is tried again."""
RETRY_BACKOFF = Backoff(first=0.01, most=0.5)
"""The pauses before a temporarily refused command is sent again."""


@dataclasses.dataclass(frozen=True)
class Durability:
    """What an operation waits for in addition to the server's answer.

    Attributes:
        replicas: How many replicas must have received it (WAIT). A failover may choose any replica, so fewer than all
            may lose it. `"all"` is the number known when the client connected, at least one.
        fsync: The server must have synced it to its append-only file (WAITAOF: Redis 7.2 or Valkey).
        timeout: Seconds to wait for that; then DurabilityError is raised.
    """

    replicas: int | Literal["all"] = 0
    fsync: bool = False
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.replicas, str) and self.replicas != "all":
            raise TypeError('replicas must be a whole number or "all"')
        if self.replicas != "all":
            validation.whole(self.replicas, "replicas", 0)
        if not isinstance(self.fsync, bool):
            raise TypeError(f"fsync must be True or False, not {type(self.fsync).__name__}")
        validation.seconds(self.timeout, "timeout", 0.001, 100.0)


class OtherOptions(TypedDict, total=False):
    """The options of a `Client` besides its URL.

    Attributes:
        sentinels: The addresses of Sentinels, `"host:26379"`, that know where the primary is; with `service`.
        service: The name of the primary on the Sentinels.
        sentinel_username: For Sentinels with users.
        sentinel_password: For Sentinels with a password.
        cluster: The addresses of some nodes of a cluster, `"host:6379"`.
        host: The server's name or address; `127.0.0.1` by default.
        port: The server's TCP port; 6379 by default.
        db: The number of the database; 0 by default.
        username: For servers with users.
        password: For servers with a password.
        prefix: The prefix of every key of a queue; `__pressure__` by default.
        redis: An existing client of redis.asyncio (`Redis`, also of a Sentinel, or `RedisCluster`) or of fakeredis,
            whose server and credentials are used. The program closes it.
        client_id: The value of `:producer` and `:consumer`; by default host, process, thread and a random part.
        scripting: False for servers that refuse scripts: the client uses the specification's plain commands.
        max_connections: How many connections the client opens at most; None for no limit.
        connect_timeout: Seconds that one attempt to connect may take. While the process stands still, none pass.
        response_timeout: Seconds without a reply after which the client gives up the connection; at most 100, so that
            no repeat comes later than the server's record of the step lasts.
        retry_timeout: Seconds for which the client tries to replace a lost connection before operations fail; at most
            150. The default is 10, and 60 with Sentinels or a cluster, which need time to agree on a new primary.
        durability: What puts, acknowledgements and other writes wait for: a `Durability`, a number of replicas, or
            `"all"` for all replicas that are known when the client connects. Fewer than all may lose confirmed writes.
        settle_timeout: Seconds that a cancelled operation waits to learn its outcome. Also how long `serve` waits for
            the server at its end, from when no handler runs any more.
        max_message_size: The largest message in bytes that may be put.
    """

    host: str | None
    port: int | None
    db: int | None
    username: str | None
    password: str | None
    prefix: str | None
    sentinels: Sequence[str | tuple[str, int]] | None
    service: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    cluster: Sequence[str | tuple[str, int]] | None
    redis: Any
    client_id: str | None
    scripting: bool
    max_connections: int | None
    connect_timeout: float
    response_timeout: float
    retry_timeout: float
    settle_timeout: float
    durability: Durability | int | Literal["all"] | None
    max_message_size: int


class ClientOptions(OtherOptions, total=False):
    """The options of an `AsyncQueue` with a client of its own: those of `OtherOptions`, and the server's URL.

    Attributes:
        url: `redis://[user:password@]host[:port][/db]`, `unix:///path/to/socket?db=0`,
            `redis+sentinel://[user:password@]host[:port],…/service[/db]`, `redis+cluster://[user:password@]host[:port],…`,
            the same with `rediss` (TLS), `embedded://` (a private server of this process) or `embedded:///some/dir`
            (one that keeps its data there).
    """

    url: str | None


class Settings(NamedTuple):
    """Checked settings. The `repr` shows no secret. (A dataclass takes ten times as long to import.)"""

    address: Address
    prefix: str
    client_id: str | None
    embedded: bool = False
    embedded_directory: str | None = None
    fake: Any = None
    scripting: bool = True
    max_connections: int | None = None
    connect_timeout: float = 5.0
    response_timeout: float = 15.0
    retry_timeout: float = 10.0
    settle_timeout: float = 5.0
    durability: Durability | None = None
    max_message_size: int = MAX_MESSAGE_SIZE

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._asdict().items() if name != "fake")
        return f"Settings({', '.join(shown)})"

    def identity(self) -> str:
        """Return `client_id`, or a new identity. Ask once, and not before the first use: a process may be forked."""
        return self.client_id or client_identity()


def settings_from(options: ClientOptions, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the checked settings for a client's options.

    Args:
        options: The options; see `ClientOptions`.
        environment: The environment variables; by default those of the process.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option, a part of the URL or an environment variable is invalid; the message says why.
    """
    environment = os.environ if environment is None else environment
    validation.known(options, ClientOptions.__annotations__)
    common: dict[str, Any] = {
        "prefix": _prefix(options.get("prefix"), environment),
        "client_id": _client_id(options.get("client_id")),
        "scripting": bool(options.get("scripting", True)),
        "connect_timeout": _seconds(options, "connect_timeout", 5.0),
        "response_timeout": _seconds(options, "response_timeout", 15.0, most=100.0),
        "settle_timeout": _seconds(options, "settle_timeout", 5.0),
    }
    largest = options.get("max_message_size", MAX_MESSAGE_SIZE)
    common["max_message_size"] = validation.whole(largest, "max_message_size", 1, None, "bytes")
    common["durability"] = _durability(options.get("durability"), common["response_timeout"], common["scripting"])
    if (most := options.get("max_connections")) is not None:
        common["max_connections"] = validation.whole(most, "max_connections")
    common["retry_timeout"] = _seconds(options, "retry_timeout", 10.0, most=150.0, zero=True)
    given = sorted(key for key in ("sentinels", "cluster", *PARTS, *SENTINEL_PARTS) if options.get(key) is not None)
    client, url = options.get("redis"), options.get("url")
    if client is not None:
        if url is not None or given:
            raise TypeError("give either redis= or the server's address (url, host, port, …), not both")
        if any(base.__module__.partition(".")[0] == "fakeredis" for base in type(client).__mro__):
            if not hasattr(client, "__aenter__"):
                raise TypeError("redis must be an asyncio client. Use fakeredis.FakeAsyncRedis")
            if common["durability"] is not None:
                raise ValueError("fakeredis has neither replicas nor a disk. Leave out durability=")
            return Settings(address=Address("fakeredis"), fake=client, **common)
        from apressure.connection import parsing

        address = parsing.adopt(client)
    elif isinstance(url, str) and url.startswith("embedded:"):
        if given:
            raise ValueError(f"an embedded server has an address of its own. Leave out {', '.join(given)}")
        return Settings(address=Address(url), embedded=True, embedded_directory=_embedded_directory(url), **common)
    else:
        from apressure.connection import parsing

        address = parsing.find(options, environment)
    if address.nodes and "retry_timeout" not in options:
        common["retry_timeout"] = 60.0
    return Settings(address=address, **common)


def _embedded_directory(url: str) -> str | None:
    parsed = urlparse(url)
    if parsed.netloc or parsed.query or not url.startswith("embedded://"):
        raise ValueError("write embedded:// for a private server, or embedded:///some/dir for one that keeps its data")
    return unquote(parsed.path) or None


def _prefix(given: str | None, environment: Mapping[str, str]) -> str:
    prefix = given if given is not None else environment.get("PRESSURE_PREFIX") or DEFAULT_PREFIX
    if not validation.text(prefix, "prefix"):
        raise ValueError("prefix must not be empty")
    if prefix == "apressure" or prefix.startswith("apressure:"):
        raise ValueError("the prefix 'apressure' is reserved for apressure's own keys. Choose another one")
    return prefix


def client_identity() -> str:
    """Return a new identity, such as `"web-3:4711:140213:9f86d081"`, for the keys `:producer` and `:consumer`.

    Specification, "Clients": host, process and thread help a human to find a deadlock. The random part distinguishes
    the clients of one thread.
    """
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}:{os.urandom(4).hex()}"


def _client_id(given: str | None) -> str | None:
    if given is None:
        return None
    if not 1 <= len(validation.text(given, "client_id")) <= 1024:
        raise ValueError("client_id must have 1 to 1024 characters")
    return given


def _seconds(
    options: ClientOptions, key: str, default: float, most: float = validation.LONGEST, zero: bool = False
) -> float:
    return float(validation.seconds(options.get(key, default), key, most=most, above=not zero))


def _durability(value: Any, response_timeout: float, scripting: bool) -> Durability | None:
    if value is None:
        return None
    durability = Durability(value) if isinstance(value, int) or value == "all" else value
    if not isinstance(durability, Durability):
        raise TypeError(f'durability must be a Durability or a number of replicas (or "all"), not {value!r:.40}')
    if not (durability.replicas or durability.fsync):
        return None
    if not scripting:
        raise ValueError("durability= needs scripts on the server. Leave out scripting=False")
    if durability.timeout >= response_timeout:
        raise ValueError(
            f"the timeout of durability= ({durability.timeout:g} s) must be less than response_timeout "
            f"({response_timeout:g} s)"
        )
    return durability
