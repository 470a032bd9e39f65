"""Options become `Settings`: everything that a client needs to know, checked, no I/O. `addresses` finds the server."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import unquote, urlparse

from apressure.connection import addresses
from apressure.connection.addresses import PARTS, SENTINEL_PARTS, Address
from apressure.identity import client_identity

DEFAULT_PREFIX = "__pressure__"
MAX_MESSAGE_SIZE = 512 * 1024 * 1024
"""The largest message in bytes that Redis takes by default (`proto-max-bulk-len`)."""


@dataclasses.dataclass(frozen=True)
class Durability:
    """What an operation waits for before it counts as done, beyond the server's own answer.

    Attributes:
        replicas: How many replicas must have received it (WAIT).
        fsync: The server must have written it to its append-only file, and the disk (WAITAOF: Redis 7.2 or Valkey).
        timeout: Seconds to wait for that; then DurabilityError is raised.
    """

    replicas: int = 0
    fsync: bool = False
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise TypeError(f"replicas must be a whole number, not {type(self.replicas).__name__}")
        if self.replicas < 0:
            raise ValueError(f"replicas must be at least 0, not {self.replicas}")
        if not isinstance(self.fsync, bool):
            raise TypeError(f"fsync must be True or False, not {type(self.fsync).__name__}")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds, not {type(self.timeout).__name__}")
        if not 0.001 <= self.timeout <= 100:
            raise ValueError(f"timeout must be between 0.001 and 100 seconds, not {self.timeout}")


class OtherOptions(TypedDict, total=False):
    """The options of a `Client` beside its URL.

    Attributes:
        sentinels: The addresses of Sentinels, `"host:26379"`, that know where the primary is; with `service`.
        service: What the Sentinels call the primary.
        sentinel_username: For Sentinels with users.
        sentinel_password: For Sentinels with a password.
        cluster: The addresses of some nodes of a cluster, `"host:6379"`.
        host: The server's name or address; `127.0.0.1` by default.
        port: The server's TCP port; 6379 by default.
        db: The number of the database; 0 by default.
        username: For servers with users.
        password: For servers with a password.
        prefix: What every key of a queue begins with; `__pressure__` by default.
        redis: A client of redis.asyncio (`Redis`, also of a Sentinel, or `RedisCluster`) or of fakeredis that the
            program has already: its server and credentials are used. The client stays the program's to close.
        client_id: What `:producer` and `:consumer` show; made of host, process, thread and a random part by default.
        scripting: False for servers that refuse scripts: the specification's plain commands are used.
        max_connections: The most connections that the client opens at a time; None for no limit.
        connect_timeout: Seconds that one attempt to connect may take.
        response_timeout: Seconds after which a reply is given up and the connection with it; at most 100, so that no
            repeat comes later than the server's record of the step lasts.
        retry_timeout: Seconds for which a lost connection is tried again before operations fail; at most 150. The
            default is 10, and 60 with Sentinels or a cluster, which need time to agree on a new primary.
        durability: What puts, acknowledgements and the like wait for: a `Durability`, or a number of replicas.
        settle_timeout: Seconds for which a cancelled operation waits to learn its outcome.
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
    durability: Durability | int | None
    max_message_size: int


class ClientOptions(OtherOptions, total=False):
    """The options of an `AsyncQueue` that makes its own client: those of `OtherOptions`, and where the server is.

    Attributes:
        url: `redis://[user:password@]host[:port][/db]`, `unix:///path/to/socket?db=0`,
            `redis+sentinel://[user:password@]host[:port],…/service[/db]`, `redis+cluster://[user:password@]host[:port],…`,
            the same with `rediss` (TLS), `embedded://` (a private server of this process) or `embedded:///some/dir`
            (one that keeps its data there).
    """

    url: str | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checked settings. The `repr` shows no secret."""

    address: Address
    prefix: str
    client_id: str
    embedded: bool = False
    embedded_directory: str | None = None
    fake: Any = dataclasses.field(default=None, repr=False)
    scripting: bool = True
    max_connections: int | None = None
    connect_timeout: float = 5.0
    response_timeout: float = 15.0
    retry_timeout: float = 10.0
    settle_timeout: float = 5.0
    durability: Durability | None = None
    max_message_size: int = MAX_MESSAGE_SIZE


def resolve(options: ClientOptions, environment: Mapping[str, str] | None = None) -> Settings:
    """Turn options into settings.

    Args:
        options: What the user gave; see `ClientOptions`.
        environment: The environment variables; those of the process by default.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option's value, the URL's or an environment variable's is of no use; it says why.
    """
    environment = os.environ if environment is None else environment
    unknown = set(options) - set(ClientOptions.__annotations__)
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}; the options are {', '.join(ClientOptions.__annotations__)}")
    common: dict[str, Any] = {
        "prefix": _prefix(options.get("prefix"), environment),
        "client_id": _client_id(options.get("client_id")),
        "scripting": bool(options.get("scripting", True)),
        "max_connections": _max_connections(options.get("max_connections")),
        "connect_timeout": _seconds(options, "connect_timeout", 5.0),
        "response_timeout": _seconds(options, "response_timeout", 15.0, most=100.0),
        "settle_timeout": _seconds(options, "settle_timeout", 5.0),
        "max_message_size": _size(options.get("max_message_size", MAX_MESSAGE_SIZE)),
    }
    common["durability"] = _durability(options.get("durability"), common["response_timeout"], common["scripting"])
    given = sorted(key for key in ("sentinels", "cluster", *PARTS, *SENTINEL_PARTS) if options.get(key) is not None)
    client, url = options.get("redis"), options.get("url")
    retry_timeout = _seconds(options, "retry_timeout", 10.0, most=150.0, zero=True)
    if client is not None:
        if url is not None or given:
            raise TypeError("give either redis= or the server's address (url, host, port, …), not both")
        if any(base.__module__.partition(".")[0] == "fakeredis" for base in type(client).__mro__):
            if not hasattr(client, "__aenter__"):
                raise TypeError("redis must be an asyncio client: use fakeredis.FakeAsyncRedis")
            return Settings(address=Address("fakeredis"), fake=client, retry_timeout=retry_timeout, **common)
        address = addresses.adopt(client)
    elif isinstance(url, str) and url.startswith("embedded:"):
        if given:
            raise ValueError(f"an embedded server has an address of its own: leave out {', '.join(given)}")
        directory = _embedded_directory(url)
        return Settings(
            address=Address(url), embedded=True, embedded_directory=directory, retry_timeout=retry_timeout, **common
        )
    else:
        address = addresses.find(options, environment)
    if address.nodes and "retry_timeout" not in options:
        retry_timeout = 60.0
    return Settings(address=address, retry_timeout=retry_timeout, **common)


def _embedded_directory(url: str) -> str | None:
    parsed = urlparse(url)
    if parsed.netloc or parsed.query or not url.startswith("embedded://"):
        raise ValueError("write embedded:// for a private server, or embedded:///some/dir for one that keeps its data")
    return unquote(parsed.path) or None


def _prefix(given: str | None, environment: Mapping[str, str]) -> str:
    prefix = given if given is not None else environment.get("PRESSURE_PREFIX") or DEFAULT_PREFIX
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, not {type(prefix).__name__}")
    if not prefix:
        raise ValueError("prefix must not be empty")
    if prefix == "apressure" or prefix.startswith("apressure:"):
        raise ValueError("the prefix 'apressure' is taken: apressure keeps leases and the like under it")
    return prefix


def _client_id(given: str | None) -> str:
    if given is None:
        return client_identity()
    if not isinstance(given, str):
        raise TypeError(f"client_id must be a string, not {type(given).__name__}")
    if not given or len(given) > 1024:
        raise ValueError("client_id must have 1 to 1024 characters")
    return given


def _seconds(options: ClientOptions, key: str, default: float, most: float = 1e6, zero: bool = False) -> float:
    value = options.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{key} must be a number of seconds, not {type(value).__name__}")
    if not (0 <= value <= most) or (value == 0 and not zero):
        least = "at least" if zero else "more than"
        raise ValueError(f"{key} must be {least} 0 and at most {most:g} seconds, not {value}")
    return float(value)


def _max_connections(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_connections must be an integer or None, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"max_connections must be at least 1, not {value}")
    return value


def _size(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_message_size must be a number of bytes, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"max_message_size must be at least 1 byte, not {value}")
    return value


def _durability(value: Durability | int | None, response_timeout: float, scripting: bool) -> Durability | None:
    if value is None:
        return None
    durability = Durability(value) if isinstance(value, int) else value
    if not isinstance(durability, Durability):
        raise TypeError(f"durability must be a Durability or a number of replicas, not {type(value).__name__}")
    if not (durability.replicas or durability.fsync):
        return None
    if not scripting:
        raise ValueError("durability= needs scripts on the server: leave out scripting=False")
    if durability.timeout >= response_timeout:
        raise ValueError(
            f"the timeout of durability= ({durability.timeout:g} s) must be less than response_timeout "
            f"({response_timeout:g} s)"
        )
    return durability
