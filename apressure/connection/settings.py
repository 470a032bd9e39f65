"""URL, arguments and environment become `Settings`: everything that a client needs to know, checked, no I/O.

Arguments win over the URL, the URL over the environment variables of the specification ("Message Brokers"):
REDIS_SERVER, REDIS_PORT, REDIS_DB and PRESSURE_PREFIX, and those over the specification's defaults.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import unquote, urlparse

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError

from apressure.identity import client_identity

DEFAULT_PREFIX = "__pressure__"
MAX_MESSAGE_SIZE = 512 * 1024 * 1024
"""The largest message in bytes that Redis takes by default (`proto-max-bulk-len`)."""

_SCHEMES = "redis://, rediss://, unix:// or embedded://"
_QUOTE = "write special characters of a password as %XX (/ as %2F, # as %23, ? as %3F, @ as %40)"

# What a connection of the user's own client may hand over to ours. Everything else (retries, timeouts of replies,
# decoding, maintenance notifications) is the business of the connection that uses it.
_ADOPTED = (
    "host",
    "port",
    "path",
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_connect_timeout",
    "socket_type",
)


class OtherOptions(TypedDict, total=False):
    """The options of a `Client` beside its URL.

    Attributes:
        host: The server's name or address; `127.0.0.1` by default.
        port: The server's TCP port; 6379 by default.
        db: The number of the database; 0 by default.
        username: For servers with users.
        password: For servers with a password.
        prefix: What every key of a queue begins with; `__pressure__` by default.
        redis: A `redis.asyncio.Redis` (or fakeredis) client that the program has already: its server and credentials
            are used. The client itself stays the program's to close.
        client_id: What `:producer` and `:consumer` show; made of host, process, thread and a random part by default.
        scripting: False for servers that refuse scripts: the specification's plain commands are used.
        max_connections: The most connections that the client opens at a time; None for no limit.
        connect_timeout: Seconds that one attempt to connect may take.
        response_timeout: Seconds after which a reply is given up and the connection with it.
        retry_timeout: Seconds for which a lost connection is tried again before operations fail; at most 150.
        settle_timeout: Seconds for which a cancelled operation waits to learn its outcome.
        max_message_size: The largest message in bytes that may be put.
    """

    host: str | None
    port: int | None
    db: int | None
    username: str | None
    password: str | None
    prefix: str | None
    redis: Any
    client_id: str | None
    scripting: bool
    max_connections: int | None
    connect_timeout: float
    response_timeout: float
    retry_timeout: float
    settle_timeout: float
    max_message_size: int


class ClientOptions(OtherOptions, total=False):
    """The options of an `AsyncQueue` that makes its own client: those of `OtherOptions`, and where the server is.

    Attributes:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS), `unix:///path/to/socket?db=0`,
            `embedded://` (a private server of this process) or `embedded:///some/dir` (one that keeps its data there).
    """

    url: str | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checked settings. The `repr` shows no secret."""

    address: str
    prefix: str
    client_id: str
    connection_class: type[Any] = dataclasses.field(default=Connection, repr=False)
    connection_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    embedded: bool = False
    embedded_directory: str | None = None
    fake: Any = dataclasses.field(default=None, repr=False)
    scripting: bool = True
    max_connections: int | None = None
    connect_timeout: float = 5.0
    response_timeout: float = 15.0
    retry_timeout: float = 10.0
    settle_timeout: float = 5.0
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
        "response_timeout": _seconds(options, "response_timeout", 15.0),
        "retry_timeout": _seconds(options, "retry_timeout", 10.0, most=150.0, zero=True),
        "settle_timeout": _seconds(options, "settle_timeout", 5.0),
        "max_message_size": _size(options.get("max_message_size", MAX_MESSAGE_SIZE)),
    }
    parts = ("host", "port", "db", "username", "password")
    given = {key: options.get(key) for key in parts if options.get(key) is not None}
    if options.get("redis") is not None:
        if options.get("url") is not None or given:
            raise TypeError("give either redis= or the server's address (url, host, port, …), not both")
        return _adopt(options["redis"], common)
    url = options.get("url")
    if url is not None and not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url).__name__}")
    if url is not None and url.startswith("embedded:"):
        if given:
            raise ValueError(f"an embedded server has an address of its own: leave out {', '.join(given)}")
        return Settings(address=url, embedded=True, embedded_directory=_embedded_directory(url), **common)
    connection: dict[str, Any] = {"host": "127.0.0.1", "port": 6379, "db": 0}
    if url is None:
        connection.update(_from_environment(environment))
    else:
        connection.update(_from_url(url))
    connection.update(_checked(given))
    connection_class = connection.pop("connection_class", Connection)
    if connection_class is UnixDomainSocketConnection:
        if "host" in given or "port" in given:
            raise ValueError("a unix:// server has no host and no port: leave them out")
        del connection["host"], connection["port"]
        if not connection.get("path"):
            raise ValueError("the URL names no socket: write unix:///path/to/the/socket")
    return Settings(
        address=_address(connection), connection_class=connection_class, connection_options=connection, **common
    )


def _address(connection: Mapping[str, Any]) -> str:
    where = connection.get("path") or f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"
    return f"{where} (database {connection.get('db') or 0})"


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if environment.get("REDIS_SERVER"):
        found["host"] = environment["REDIS_SERVER"]
    for key, variable in (("port", "REDIS_PORT"), ("db", "REDIS_DB")):
        text = environment.get(variable)
        if text:
            if not (text.isascii() and text.isdigit()):
                raise ValueError(f"the environment variable {variable} must be a number, not {text!r}")
            found[key] = int(text)
    return _checked(found)


def _from_url(url: str) -> dict[str, Any]:
    try:
        parts = urlparse(url)
    except ValueError:  # its text has the part of the URL with the password
        raise ValueError(f"the URL is not valid: {_QUOTE}") from None
    scheme = parts.scheme
    if scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"the URL must begin with {_SCHEMES}, not {scheme or url.rsplit('@', maxsplit=1)[-1][:40]!r}")
    if (
        scheme != "unix"
        and "@" not in parts.netloc
        and "@" in parts.path + parts.fragment + parts.query.partition("=")[0]
    ):
        # What stands before is (a piece of) the password: nothing of it may be shown.
        raise ValueError(f"the URL is not valid: {_QUOTE}")
    try:
        parsed: dict[str, Any] = dict(parse_url(url))
        if scheme != "unix" and parts.port is not None:
            parsed["port"] = parts.port  # redis-py passes over 0
    except ValueError as error:
        # The URL may hold a password: name the trouble, never the URL.
        raise ValueError(f"the URL is not valid: {error}") from None
    path = parts.path.strip("/")
    if scheme != "unix" and path and not (path.isascii() and path.isdigit()):
        raise ValueError(f"the URL's path must be the number of a database, not {path!r}")
    # Timeouts of replies and retries are ours; redis-py's own would repeat commands behind our back.
    taken = ("socket_timeout", "retry_on_timeout", "health_check_interval", "max_connections", "protocol", "timeout")
    for ours in taken:
        if ours in parsed:
            raise ValueError(
                f"the URL may not set {ours}: use the client's options (response_timeout, max_connections)"
            )
    connection_class = parsed.get("connection_class", Connection)
    try:
        connection_class(**{key: value for key, value in parsed.items() if key != "connection_class"})
    except TypeError as error:
        option = str(error).partition("argument ")[2] or str(error)
        raise ValueError(f"the URL has an option that connections do not know: {option}") from None
    except (RedisError, OSError, ValueError) as error:
        raise ValueError(f"the URL is not valid: {error}") from None
    return _checked(parsed)


def _checked(connection: dict[str, Any]) -> dict[str, Any]:
    for key, least, most in (("port", 1, 65535), ("db", 0, 2**31 - 1)):
        value = connection.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{key} must be an integer, not {type(value).__name__}")
        if not least <= value <= most:
            raise ValueError(f"{key} must be between {least} and {most}, not {value}")
    for key in ("host", "username", "password"):
        if not isinstance(connection.get(key, ""), str):
            raise TypeError(f"{key} must be a string, not {type(connection[key]).__name__}")
    if connection.get("host") == "":
        raise ValueError("host must not be empty")
    return connection


def _embedded_directory(url: str) -> str | None:
    parsed = urlparse(url)
    if parsed.netloc or parsed.query or not url.startswith("embedded://"):
        raise ValueError("write embedded:// for a private server, or embedded:///some/dir for one that keeps its data")
    return unquote(parsed.path) or None


def _adopt(client: Any, common: dict[str, Any]) -> Settings:
    """Take server and credentials from a client that the program has already."""
    if any(base.__module__.partition(".")[0] == "fakeredis" for base in type(client).__mro__):
        if not hasattr(client, "__aenter__"):
            raise TypeError("redis must be an asyncio client: use fakeredis.FakeAsyncRedis")
        return Settings(address="fakeredis", fake=client, **common)
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    connection_class = getattr(pool, "connection_class", None)
    if (
        options is None
        or not isinstance(connection_class, type)
        or not issubclass(connection_class, (Connection, UnixDomainSocketConnection))
        or connection_class.__module__ == "redis.asyncio.sentinel"
    ):
        raise TypeError(f"redis must be a redis.asyncio.Redis (or fakeredis) client of one server, not {client!r:.60}")
    adopted = {
        key: value
        for key, value in options.items()
        if value is not None
        and (key in _ADOPTED or (key.startswith("ssl_") and issubclass(connection_class, SSLConnection)))
    }
    return Settings(address=_address(adopted), connection_class=connection_class, connection_options=adopted, **common)


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
