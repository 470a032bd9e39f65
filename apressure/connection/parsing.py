"""Turns a URL, arguments, the environment or a redis-py client into an `Address`. No I/O.

This module imports redis-py, which takes longer than the rest of apressure: import it where an address is asked for.

Arguments win over the URL, the URL over the environment variables of the specification ("Message Brokers"):
REDIS_SERVER, REDIS_PORT and REDIS_DB, and those over the specification's defaults.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
import ssl
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

from apressure import validation
from apressure.connection.addresses import PARTS, QUOTE, SENTINEL_PARTS, Address, Node, Options, text_of

NAMELESS: dict[str, None] = (
    {"driver_info": None} if "driver_info" in inspect.signature(AbstractConnection).parameters else {}
)
"""Keeps later versions of redis-py from reading their own version from a file for each connection."""


def host_check(connection_class: type[Any], options: Options) -> dict[str, bool]:
    """Return the option that makes redis-py before 6 check the host name in a certificate, unless it is turned off."""
    if not issubclass(connection_class, SSLConnection) or options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        return {}
    return {"ssl_check_hostname": True}


_MANY = ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_PORTS = {"sentinels": 26379, "cluster": 6379}
_SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// (rediss+… for TLS) or embedded://"
_ELSEWHERE = "credentials go into username= and password="
_ADDRESS = "an address must be host:port, and the port a number"

# The options of the user's client that ours takes over. All others (retries, timeouts of replies, decoding, maintenance
# notifications) are for the user's own connections only.
_ADOPTED = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "socket_keepalive",
    "socket_keepalive_options", "socket_connect_timeout", "socket_type",
)  # fmt: skip

# The client has its own timeouts and retries; those of redis-py would repeat commands without its knowledge.
_OURS = {"socket_timeout", "retry_on_timeout", "health_check_interval", "max_connections", "protocol", "timeout"}


def find(options: Options, environment: Mapping[str, str]) -> Address:
    """Return the server's address.

    Args:
        options: The client's options; see `settings.ClientOptions`.
        environment: The environment variables.

    Raises:
        TypeError: An option is of the wrong type, or two options contradict each other.
        ValueError: An option, a part of the URL or an environment variable is invalid; the message says why.
    """
    given = {key: options[key] for key in PARTS if options.get(key) is not None}
    url, sentinels, cluster = options.get("url"), options.get("sentinels"), options.get("cluster")
    if sum(place is not None for place in (url, sentinels, cluster)) > 1:
        raise TypeError("give one of url=, sentinels= and cluster=")
    if url is not None:
        validation.text(url, "url")
    about_sentinels = {key: options[key] for key in SENTINEL_PARTS if options.get(key) is not None}
    nodes: tuple[Node, ...] = ()
    connection: dict[str, Any] = {"host": "127.0.0.1", "port": 6379, "db": 0}
    kind = "sentinels" if sentinels is not None else "cluster" if cluster is not None else ""
    if kind:
        nodes = _nodes(options[kind], kind)
    elif url is None:
        connection.update(_from_environment(environment))
    elif url.partition(":")[0].lower() in _MANY:
        kind, nodes, found, in_url = _from_url_of_many(url)
        connection.update(found)
        about_sentinels = {**in_url, **about_sentinels}
    else:
        connection.update(_from_url(url))
    connection.update(_checked(given))
    connection_class = connection.pop("connection_class", Connection)
    if kind:
        if "host" in given or "port" in given:
            raise TypeError(f"give either host and port, or {kind}=")
        return _of_many(kind, nodes, connection_class, connection, about_sentinels)
    if about_sentinels:
        raise TypeError(f"{min(about_sentinels)} is for Sentinels. Give sentinels= or a redis+sentinel:// URL as well")
    if connection_class is UnixDomainSocketConnection:
        if "host" in given or "port" in given:
            raise ValueError("a unix:// server has no host and no port. Leave them out")
        del connection["host"], connection["port"]
        if not connection.get("path"):
            raise ValueError("the URL names no socket. Write unix:///path/to/the/socket")
    return Address(text_of(connection), connection_class, connection)


def adopt(client: Any) -> Address:
    """Return the address of an existing client, with its credentials.

    Raises:
        TypeError: It is not an asyncio client of redis-py.
    """
    manager = getattr(client, "nodes_manager", None)
    if manager is not None and isinstance(getattr(manager, "startup_nodes", None), dict):
        nodes = tuple((str(node.host), int(node.port)) for node in manager.startup_nodes.values())
        kind = client.connection_kwargs.get("connection_class", Connection)
        options = _adopted(client.connection_kwargs, issubclass(kind, SSLConnection))
        return _of_many("cluster", nodes, kind, options, {})
    pool: Any = getattr(client, "connection_pool", None)
    connection_class = getattr(pool, "connection_class", None)
    kinds = (Connection, UnixDomainSocketConnection)
    if not isinstance(connection_class, type) or not issubclass(connection_class, kinds):
        raise TypeError(f"redis must be a redis.asyncio (or fakeredis) client, not {client!r:.60}")
    tls = issubclass(connection_class, SSLConnection)
    adopted = _adopted(pool.connection_kwargs, tls)
    if connection_class.__module__ == "redis.asyncio.sentinel":
        pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
        asked = [sentinel.connection_kwargs for sentinel in pools]
        nodes = tuple((str(one.get("host", "localhost")), int(one.get("port", 26379))) for one in asked)
        if any(issubclass(sentinel.connection_class, SSLConnection) for sentinel in pools) != tls:
            raise TypeError("redis= of Sentinels: Sentinels and servers must both use TLS, or neither")
        kind = SSLConnection if tls else Connection
        found = _of_many("sentinels", nodes, kind, adopted, {"service": str(pool.service_name)})
        return found._replace(sentinel_options=_adopted(asked[0], tls))
    return Address(text_of(adopted), connection_class, adopted)


def _adopted(options: Options, tls: bool) -> dict[str, Any]:
    return {
        key: value
        for key, value in options.items()
        if value is not None and (key in _ADOPTED or (key.startswith("ssl_") and tls))
    }


def _of_many(
    kind: str, nodes: tuple[Node, ...], connection_class: type[Any], connection: Options, about_sentinels: Options
) -> Address:
    options = {key: value for key, value in connection.items() if key not in ("host", "port")}
    places = ", ".join(f"{host}:{port}" for host, port in nodes)
    if kind == "cluster":
        if about_sentinels:
            raise TypeError(f"{min(about_sentinels)} is for Sentinels; a cluster has none")
        if options.get("db"):
            raise ValueError("a cluster has database 0 only")
        return Address(f"the cluster of {places}", connection_class, options, nodes=nodes)
    for key, value in about_sentinels.items():
        validation.text(value, key)
    service = about_sentinels.get("service")
    if not service:
        raise ValueError(
            "the primary's name on the Sentinels is missing. Give service=, or write redis+sentinel://host:port,host:port/NAME"
        )
    sentinel_options = {key: value for key, value in options.items() if key.startswith("ssl_")}
    for key in ("username", "password"):
        if about_sentinels.get(f"sentinel_{key}"):
            sentinel_options[key] = about_sentinels[f"sentinel_{key}"]
    text = f"{service!r} of the Sentinels {places}"
    return Address(text, connection_class, options, service, nodes, sentinel_options)


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
            checked = _checked({"host": one[0], "port": one[1]})
            nodes.append((checked["host"], checked["port"]))
        else:
            raise TypeError(f"{kind} must be a list of addresses ({example}), not of {type(one).__name__}")
    if not nodes:
        raise ValueError(f"{kind} names no address. Write {example}")
    return tuple(nodes)


def _node(text: str, default_port: int, shown: bool = True) -> Node:
    """Parse `host`, `host:port`, `[::1]:port` or `::1`. Errors do not show text from a URL: it may be a password."""
    if "@" in text or "//" in text:  # it may contain a password: do not show it
        raise ValueError(f"an address must be host:port; {_ELSEWHERE}")
    match = re.fullmatch(r"(?:\[(.+)\]|([^:/]+))(?::([0-9]*))?", text)
    host, port = (match[1] or match[2], match[3]) if match else (text, None)
    valid = host and not set("/[]") & set(host)
    if valid and ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            valid = False
    if not valid:
        raise ValueError(f"an address must be host:port, not {text!r}" if shown else _ADDRESS)
    return host, int(_checked({"port": int(port or default_port)})["port"])


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


def _parsed(url: str) -> ParseResult:
    """Split a URL. Errors show nothing that may be (a part of) a password."""
    try:
        parts = urlparse(url)
    except ValueError:  # its text contains the part with the password
        parts = None
    if parts is None:  # raised outside of `except`, where the other error would be its context
        raise ValueError(f"the URL is not valid: {QUOTE}")
    scheme = parts.scheme
    if scheme not in ("redis", "rediss", "unix", *_MANY):
        raise ValueError(f"the URL must begin with {_SCHEMES}, not {scheme or url.rsplit('@', maxsplit=1)[-1][:40]!r}")
    behind = parts.path + parts.fragment + parts.query.partition("=")[0]
    if scheme != "unix" and "@" not in parts.netloc and "@" in behind:
        raise ValueError(f"the URL is not valid: {QUOTE}")
    return parts


def _from_url(url: str) -> dict[str, Any]:
    parts = _parsed(url)
    parsed: dict[str, Any] = {}
    problem = ""
    try:
        parsed.update(parse_url(url))
        if parts.scheme != "unix" and parts.port is not None:
            parsed["port"] = parts.port  # redis-py ignores 0
    except ValueError as error:
        # Show the problem, never the URL: it may contain a password, without an "@" in the place of the port.
        problem = "the port must be a number below 65536" if str(error).startswith("Port ") else str(error)
    if problem:
        raise ValueError(f"the URL is not valid: {problem}")
    path = parts.path.strip("/")
    if parts.scheme != "unix" and path and not (path.isascii() and path.isdigit()):
        raise ValueError(f"the URL's path must be the number of a database, not {path!r}")
    if taken := parsed.keys() & _OURS:
        raise ValueError(
            f"the URL must not set {min(taken)}. Use the client's options (response_timeout, max_connections)"
        )
    connection_class = parsed.get("connection_class", Connection)
    try:
        connection_class(**{key: value for key, value in parsed.items() if key != "connection_class"}, **NAMELESS)
    except TypeError as error:
        option = str(error).partition("argument ")[2] or str(error)
        raise ValueError(f"the URL has an unknown option: {option}") from None
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
        raise ValueError(f"the URL names no address. Write {parts.scheme}://host:port,host:port")
    path = parts.path.strip("/")
    about_sentinels: dict[str, Any] = {}
    query = parse_qsl(parts.query)
    if kind == "sentinels":
        service, _, path = path.partition("/")
        about_sentinels = {key: value for key, value in query if key in SENTINEL_PARTS}
        query = [(key, value) for key, value in query if key not in about_sentinels]
        if service:
            about_sentinels["service"] = unquote(service)
    found = _from_url(f"{parts.scheme.partition('+')[0]}://{credentials}{at}host/{path}?{urlencode(query)}")
    return kind, nodes, found, about_sentinels


def _checked(connection: dict[str, Any]) -> dict[str, Any]:
    for key, least, most in (("port", 1, 65535), ("db", 0, 2**31 - 1)):
        if connection.get(key) is not None:
            validation.whole(connection[key], key, least, most)
    for key in ("host", "username", "password"):
        validation.text(connection.get(key, ""), key)
    if connection.get("host") == "":
        raise ValueError("host must not be empty")
    return connection
