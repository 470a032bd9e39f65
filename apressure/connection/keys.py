"""The keys that apressure has beside a queue of any kind on a server."""

from __future__ import annotations

from abc import ABC, abstractmethod


class KeysBeside(ABC):
    """Our keys beside a queue that steps of every kind use."""

    @abstractmethod
    def _ours(self, word: str) -> bytes:
        """Return the key of ours that ends with this word."""

    @property
    def schedules(self) -> bytes:
        """Ours: the hash of the records of the queue's schedules, by their names."""
        return self._ours("schedules")

    @property
    def history(self) -> bytes:
        """Ours: the list of the records of its last day. It expires."""
        return self._ours("history")

    @property
    def dedup(self) -> bytes:
        """Ours: the hash of what was put, by dedup ids."""
        return self._ours("dedup")

    @property
    def workers(self) -> bytes:
        """Ours: the hash of the registrations of those that work on the queue. It expires."""
        return self._ours("workers")
