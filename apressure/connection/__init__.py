"""Settings, connections and waiting: the only room that imports redis."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.connection.client import Client
    from apressure.connection.settings import ClientOptions, Durability

__all__ = [
    "Client",
    "ClientOptions",
    "Durability",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "Client": "apressure.connection.client",
            "ClientOptions": "apressure.connection.settings",
            "Durability": "apressure.connection.settings",
        },
    )
