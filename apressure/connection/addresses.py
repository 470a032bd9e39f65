"""What an address of a server is. `parsing` finds it; this module needs no redis-py."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple

Node = tuple[str, int]
"""Host and port."""

Options = Mapping[str, Any]
"""Options by their names: the client's, or the arguments of a connection of redis-py."""

PARTS = ("host", "port", "db", "username", "password")
SENTINEL_PARTS = ("service", "sentinel_username", "sentinel_password")

QUOTE = "write special characters of a password as %XX (/ as %2F, # as %23, ? as %3F, @ as %40)"


class Address(NamedTuple):
    """Where to connect to, and with what. The `repr` shows no secret.

    Attributes:
        text: The address for messages, without secrets.
        connection_class: The connection class of redis-py; none for an embedded server or fakeredis.
        connection_options: Its arguments; without host and port if Sentinels or a cluster know them.
        service: The name of the primary on the Sentinels; None without Sentinels.
        nodes: The Sentinels, or some nodes of the cluster; empty for a single server.
        sentinel_options: The arguments of a connection to a Sentinel.
    """

    text: str
    connection_class: type[Any] = object
    connection_options: Mapping[str, Any] = {}
    service: str | None = None
    nodes: tuple[Node, ...] = ()
    sentinel_options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"Address(text={self.text!r}, service={self.service!r}, nodes={self.nodes!r})"

    def at(self, host: str, port: int) -> Address:
        """Return the address of the server at this host and port."""
        options = {**self.connection_options, "host": host, "port": port}
        return Address(text_of(options), self.connection_class, options)

    def sentinel_at(self, host: str, port: int) -> Address:
        """Return the address of a Sentinel."""
        options = {**self.sentinel_options, "host": host, "port": port}
        return Address(f"{host}:{port}", self.connection_class, options)


def text_of(connection: Options) -> str:
    """Return the address in these options for messages, without secrets."""
    where = connection.get("path") or f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"
    return f"{where} (database {connection.get('db') or 0})"


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
