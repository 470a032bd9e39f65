"""A private Valkey or Redis server for development, tests and demos: `embedded://`."""

from apressure.embedded.binary import find_binary
from apressure.embedded.configuration import ConfigValue
from apressure.embedded.registry import shared
from apressure.embedded.server import EmbeddedServer

__all__ = ["ConfigValue", "EmbeddedServer", "find_binary", "shared"]
