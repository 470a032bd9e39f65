"""Help for tests: a queue in memory, and the contract that every kind of queue keeps."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.testing.memory.queue import MemoryQueue
    from apressure.testing.memory.server import MemoryServer

__all__ = ["MemoryQueue", "MemoryServer"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {"MemoryQueue": "apressure.testing.memory.queue", "MemoryServer": "apressure.testing.memory.server"},
    )
