"""`okq://` URLs become a client's settings. No I/O."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from apressure.connection.settings import ClientOptions, Settings, settings_from

DEFAULT_PORT: Final = 4777
PATIENCE: Final = 45.0
"""Seconds without a reply after which a connection is given up: a server of ours tries its Redis again for 30 s."""

_SCHEMES: Final = {"okq": "redis", "okqs": "rediss", "okq+unix": "unix"}
_TAKEN: Final = frozenset(
    {
        "url", "username", "password", "prefix", "client_id", "max_connections", "connect_timeout", "response_timeout",
        "retry_timeout", "settle_timeout", "max_message_size",
    }
)  # fmt: skip


def is_okq(url: Any) -> bool:
    """Whether a URL is that of an okq server."""
    return isinstance(url, str) and url.partition(":")[0].lower() in _SCHEMES


def settings_of(options: ClientOptions) -> Settings:
    """Return the checked settings for `url="okq://[user:password@]host[:port]"` and the other options.

    `okqs://` is the same with TLS, and `okq+unix:///path` a socket of this machine. `prefix` and `client_id` have no
    effect, since okq has neither.

    Raises:
        TypeError: An option is of the wrong type.
        ValueError: An option is invalid, or only for Redis; or the URL is. The message shows no password.
    """
    given = {name for name, value in options.items() if value is not None and (name, value) != ("scripting", True)}
    if others := sorted(given - _TAKEN):
        raise ValueError(
            f"{others[0]} is for a Redis server, and an okq server has its own. Leave it out, or give the URL of the "
            "Redis server (redis://…) instead of okq://…"
        )
    scheme, _, rest = (options["url"] or "").partition(":")
    translated = f"{_SCHEMES[scheme.lower()]}:{rest}"
    kept: Any = {name: value for name, value in options.items() if name in _TAKEN}
    kept = {"response_timeout": PATIENCE, **kept, "url": translated}
    settings = settings_from(kept, {})
    address = settings.address
    connection = dict(address.connection_options)
    if connection.get("db"):
        raise ValueError("an okq server has no numbered databases. Leave the number out of the URL")
    path = connection.get("path")
    if not path and urlsplit(translated).port is None:
        connection["port"] = DEFAULT_PORT
    text = str(path or f"{connection['host']}:{connection['port']}")
    return settings._replace(address=address._replace(text=text, connection_options=connection))
