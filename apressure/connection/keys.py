"""The keys that apressure has beside a queue of any kind on a server."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Ours:
    """A key of ours beside a queue: it ends with the name of the attribute, and is made when it is first used."""

    def __set_name__(self, owner: type[KeysBeside], name: str) -> None:
        self._word = name

    def __get__(self, keys: KeysBeside, owner: type[KeysBeside]) -> bytes:
        key = keys.__dict__[self._word] = keys._ours(self._word)  # noqa: SLF001 (a part of the class)
        return key


class KeysBeside(ABC):
    """Our keys beside a queue that steps of every kind use."""

    schedules = Ours()
    """The hash of the records of the queue's schedules, by their names."""
    history = Ours()
    """The list of the records of its last day. It expires."""
    dedup = Ours()
    """The hash of what was put, by dedup ids."""
    workers = Ours()
    """The hash of the registrations of those that work on the queue. It expires."""

    @abstractmethod
    def _ours(self, word: str) -> bytes:
        """Return the key of ours that ends with this word."""
