"""Where a server is: a URL, arguments, the environment or a client of redis-py's become an `Address`. No I/O.

Arguments win over the URL, the URL over the environment variables of the specification ("Message Brokers"):
REDIS_SERVER, REDIS_PORT and REDIS_DB, and those over the specification's defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import ParseResult, parse_qsl, unquote, urlencode, urlparse

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.exceptions import RedisError

Node = tuple[str, int]
"""Host and port."""

NAMELESS: dict[str, None] = (
    {"driver_info": None} if "driver_info" in inspect.signature(AbstractConnection).parameters else {}
)
"""What keeps later versions of redis-py from looking up their own version in a file for each connection."""

PARTS = ("host", "port", "db", "username", "password")
SENTINEL_PARTS = ("service", "sentinel_username", "sentinel_password")

_MANY = {
    "redis+sentinel": "redis",
    "rediss+sentinel": "rediss",
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
}
_PORTS = {"sentinels": 26379, "cluster": 6379}
_SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// (rediss+… for TLS) or embedded://"
_ELSEWHERE = "credentials go into username= and password="
_QUOTE = "write special characters of a password as %XX (/ as %2F, # as %23, ? as %3F, @ as %40)"
_ADDRESS = "an address must be host:port, and the port a number"

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


@dataclasses.dataclass(frozen=True)
class Address:
    """Where to connect to, and with what. The `repr` shows no secret.

    Attributes:
        text: For people, without secrets.
        connection_class: redis-py's.
        connection_options: Its arguments; host and port are left out where they have to be asked for.
        service: What the Sentinels call the primary; None without Sentinels.
        nodes: The Sentinels, or some nodes of the cluster; empty for a single server.
        sentinel_options: The arguments of a connection to a Sentinel.
    """

    text: str
    connection_class: type[Any] = dataclasses.field(default=Connection, repr=False)
    connection_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    service: str | None = None
    nodes: tuple[Node, ...] = ()
    sentinel_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def at(self, host: str, port: int) -> Address:
        """The server at a place that has been asked for."""
        options = {**self.connection_options, "host": host, "port": port}
        return Address(_text(options), self.connection_class, options)

    def sentinel_at(self, host: str, port: int) -> Address:
        """One of the Sentinels."""
        options = {**self.sentinel_options, "host": host, "port": port}
        return Address(f"{host}:{port}", self.connection_class, options)


def find(options: Mapping[str, Any], environment: Mapping[str, str]) -> Address:
    """Find out where the server is.

    Args:
        options: The client's options; see `settings.ClientOptions`.
        environment: The environment variables.

    Raises:
        TypeError: An option is of the wrong type, or two say the same.
        ValueError: An option's value, the URL's or an environment variable's is of no use; it says why.
    """
    given = {key: options[key] for key in PARTS if options.get(key) is not None}
    url, sentinels, cluster = options.get("url"), options.get("sentinels"), options.get("cluster")
    if sum(place is not None for place in (url, sentinels, cluster)) > 1:
        raise TypeError("give one of url=, sentinels= and cluster=")
    if url is not None and not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url).__name__}")
    about_sentinels = {key: options[key] for key in SENTINEL_PARTS if options.get(key) is not None}
    nodes: tuple[Node, ...] = ()
    connection: dict[str, Any] = {"host": "127.0.0.1", "port": 6379, "db": 0}
    kind = "sentinels" if sentinels is not None else "cluster" if cluster is not None else ""
    if kind:
        nodes = _nodes(options[kind], kind)
    elif url is None:
        connection.update(_from_environment(environment))
    elif urlparse(_first_part(url)).scheme in _MANY:
        kind, nodes, found, in_url = _from_url_of_many(url)
        connection.update(found)
        about_sentinels = {**in_url, **about_sentinels}
    else:
        connection.update(_from_url(url))
    connection.update(_checked(given))
    connection_class = connection.pop("connection_class", Connection)
    if kind:
        return _of_many(kind, nodes, connection_class, connection, given, about_sentinels)
    if about_sentinels:
        raise TypeError(f"{min(about_sentinels)} is for Sentinels: give sentinels= or a redis+sentinel:// URL as well")
    if connection_class is UnixDomainSocketConnection:
        if "host" in given or "port" in given:
            raise ValueError("a unix:// server has no host and no port: leave them out")
        del connection["host"], connection["port"]
        if not connection.get("path"):
            raise ValueError("the URL names no socket: write unix:///path/to/the/socket")
    return Address(_text(connection), connection_class, connection)


def adopt(client: Any) -> Address:
    """Take server and credentials from a client that the program has already.

    Raises:
        TypeError: It is no asyncio client of redis-py's.
    """
    manager = getattr(client, "nodes_manager", None)
    if manager is not None and isinstance(getattr(manager, "startup_nodes", None), dict):
        nodes = tuple((str(node.host), int(node.port)) for node in manager.startup_nodes.values())
        kind = client.connection_kwargs.get("connection_class", Connection)
        options = _adopted(client.connection_kwargs, issubclass(kind, SSLConnection))
        return _of_many("cluster", nodes, kind, options, {}, {})
    pool = getattr(client, "connection_pool", None)
    connection_class = getattr(pool, "connection_class", None)
    if (
        pool is None
        or not isinstance(connection_class, type)
        or not issubclass(connection_class, (Connection, UnixDomainSocketConnection))
    ):
        raise TypeError(f"redis must be a redis.asyncio (or fakeredis) client, not {client!r:.60}")
    tls = issubclass(connection_class, SSLConnection)
    adopted = _adopted(pool.connection_kwargs, tls)
    if connection_class.__module__ == "redis.asyncio.sentinel":
        manager, service = pool.sentinel_manager, pool.service_name
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
        nodes = tuple((str(one.get("host", "localhost")), int(one.get("port", 26379))) for one in asked)
        sentinel_tls = any(
            issubclass(sentinel.connection_pool.connection_class, SSLConnection) for sentinel in manager.sentinels
        )
        if sentinel_tls != tls:
            raise TypeError("redis= of Sentinels: Sentinels and servers must both use TLS, or neither")
        found = _of_many(
            "sentinels", nodes, SSLConnection if tls else Connection, adopted, {}, {"service": str(service)}
        )
        return dataclasses.replace(found, sentinel_options=_adopted(asked[0], tls))
    return Address(_text(adopted), connection_class, adopted)


def _adopted(options: Mapping[str, Any], tls: bool) -> dict[str, Any]:
    return {
        key: value
        for key, value in options.items()
        if value is not None and (key in _ADOPTED or (key.startswith("ssl_") and tls))
    }


def _text(connection: Mapping[str, Any]) -> str:
    where = connection.get("path") or f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"
    return f"{where} (database {connection.get('db') or 0})"


def _of_many(
    kind: str,
    nodes: tuple[Node, ...],
    connection_class: type[Any],
    connection: Mapping[str, Any],
    given: Mapping[str, Any],
    about_sentinels: Mapping[str, Any],
) -> Address:
    if "host" in given or "port" in given:
        raise TypeError(f"give either host and port, or {kind}=")
    options = {key: value for key, value in connection.items() if key not in ("host", "port")}
    places = ", ".join(f"{host}:{port}" for host, port in nodes)
    if kind == "cluster":
        if about_sentinels:
            raise TypeError(f"{min(about_sentinels)} is for Sentinels; a cluster has none")
        if options.get("db"):
            raise ValueError("a cluster has database 0 only")
        return Address(f"the cluster of {places}", connection_class, options, nodes=nodes)
    for key, value in about_sentinels.items():
        if not isinstance(value, str):
            raise TypeError(f"{key} must be a string, not {type(value).__name__}")
    service = about_sentinels.get("service")
    if not service:
        raise ValueError(
            "what do the Sentinels call the primary? Give service=, or write redis+sentinel://host:port,host:port/NAME"
        )
    sentinel_options = {key: value for key, value in options.items() if key.startswith("ssl_")}
    for key in ("username", "password"):
        if about_sentinels.get(f"sentinel_{key}"):
            sentinel_options[key] = about_sentinels[f"sentinel_{key}"]
    return Address(
        f"{service!r} of the Sentinels {places}", connection_class, options, service, nodes, sentinel_options
    )


def _nodes(given: Any, kind: str) -> tuple[Node, ...]:
    example = f"{kind}=['host:{_PORTS[kind]}', …]"
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{kind} must be a list of addresses ({example}), not {type(given).__name__}")
    nodes = []
    for one in given:
        if isinstance(one, str):
            nodes.append(_node(one, _PORTS[kind]))
        elif isinstance(one, tuple) and len(one) == 2:
            if isinstance(one[0], str) and "@" in one[0]:
                raise ValueError(f"an address must be a host and a port; {_ELSEWHERE}")
            nodes.append((str(_checked({"host": one[0]})["host"]), int(_checked({"port": one[1]})["port"])))
        else:
            raise TypeError(f"{kind} must be a list of addresses ({example}), not of {type(one).__name__}")
    if not nodes:
        raise ValueError(f"{kind} names no address: write {example}")
    return tuple(nodes)


def _node(text: str, default_port: int, shown: bool = True) -> Node:
    """`host`, `host:port`, `[::1]:port` or `::1`. What stands in a URL may be a password, and is not shown."""
    if "@" in text or "//" in text:  # it may hold a password: not to be shown
        raise ValueError(f"an address must be host:port; {_ELSEWHERE}")
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(f"an address must be host:port, not {text!r}" if shown else _ADDRESS)
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit())) or "/" in host or not _valid(host):
        raise ValueError(f"an address must be host:port, not {text!r}" if shown else _ADDRESS)
    return host, int(_checked({"port": int(port or default_port)})["port"])


def _valid(host: str) -> bool:
    """A name, or an address of either kind."""
    if ":" not in host:
        return True
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


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


def _first_part(url: str) -> str:
    return url.partition("//")[0]


def _parsed(url: str) -> ParseResult:
    """The parts of a URL; an error shows nothing that may be (a piece of) a password."""
    try:
        parts = urlparse(url)
    except ValueError:  # its text has the part of the URL with the password
        parts = None
    if parts is None:  # raised here, so that the error does not carry the other one as its context
        raise ValueError(f"the URL is not valid: {_QUOTE}")
    scheme = parts.scheme
    if scheme not in ("redis", "rediss", "unix", *_MANY):
        raise ValueError(f"the URL must begin with {_SCHEMES}, not {scheme or url.rsplit('@', maxsplit=1)[-1][:40]!r}")
    if (
        scheme != "unix"
        and "@" not in parts.netloc
        and "@" in parts.path + parts.fragment + parts.query.partition("=")[0]
    ):
        raise ValueError(f"the URL is not valid: {_QUOTE}")
    return parts


def _from_url(url: str) -> dict[str, Any]:
    parts = _parsed(url)
    scheme = parts.scheme
    parsed: dict[str, Any] = {}
    trouble = ""
    try:
        parsed.update(parse_url(url))
        if scheme != "unix" and parts.port is not None:
            parsed["port"] = parts.port  # redis-py passes over 0
    except ValueError as error:
        # The URL may hold a password: name the trouble, never the URL. Where its "@" is missing, the password is what
        # stands in the port's place.
        trouble = "the port must be a number below 65536" if str(error).startswith("Port ") else str(error)
    if trouble:
        raise ValueError(f"the URL is not valid: {trouble}")
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
        connection_class(**{key: value for key, value in parsed.items() if key != "connection_class"}, **NAMELESS)
    except TypeError as error:
        option = str(error).partition("argument ")[2] or str(error)
        raise ValueError(f"the URL has an option that connections do not know: {option}") from None
    except (RedisError, OSError, ValueError) as error:
        raise ValueError(f"the URL is not valid: {error}") from None
    return _checked(parsed)


def _from_url_of_many(url: str) -> tuple[str, tuple[Node, ...], dict[str, Any], dict[str, Any]]:
    """`redis+sentinel://[user:password@]host:port,…/service[/db]` and `redis+cluster://[user:password@]host:port,…`."""
    parts = _parsed(url)
    kind = "sentinels" if parts.scheme.endswith("sentinel") else "cluster"
    credentials, at, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(host, _PORTS[kind], shown=False) for host in hosts.split(",") if host)
    if not nodes:
        raise ValueError(f"the URL names no address: write {parts.scheme}://host:port,host:port")
    path = parts.path.strip("/")
    about_sentinels: dict[str, Any] = {}
    query = parse_qsl(parts.query)
    if kind == "sentinels":
        service, _, path = path.partition("/")
        about_sentinels = {key: value for key, value in query if key in SENTINEL_PARTS}
        query = [(key, value) for key, value in query if key not in about_sentinels]
        if service:
            about_sentinels["service"] = unquote(service)
    found = _from_url(f"{_MANY[parts.scheme]}://{credentials}{at}host/{path}?{urlencode(query)}")
    return kind, nodes, found, about_sentinels


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
