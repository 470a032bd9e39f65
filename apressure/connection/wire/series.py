"""Numbers the steps of a client, so that the server recognizes a repeat."""

from __future__ import annotations

import os
from collections.abc import Callable

from apressure.connection.wire.script import Call, Script


class Series:
    """A series of numbered steps, of which at most one is unanswered at a time.

    The server keeps the result of the latest step under a key of the series. So it answers a repeat with that result,
    and does not carry it out again.

    Args:
        script: Returns a script by its name.
        keys: Returns the KEYS of every script, given the ending of the series' key.
        name: The ending of the series' key; by default one that no other series has.

    Attributes:
        keys: The KEYS.
        number: The number of the latest step.
    """

    def __init__(
        self, script: Callable[[str], Script], keys: Callable[[str], tuple[bytes, ...]], name: str = ""
    ) -> None:
        self._name = name or os.urandom(8).hex()
        self._script = script
        self.keys = keys(self._name)
        self.number = 0
        self._calls: dict[str, Call] = {}

    def call(self, name: str, more: Callable[[], tuple[bytes, ...]] = tuple, variant: str = "") -> Call:
        """Return the call of a script with this series' keys, and `more` behind them: the same ones each time.

        `variant` names calls of the same script with other keys behind them.
        """
        known = variant or name
        if known not in self._calls:
            self._calls[known] = self._script(name).on((*self.keys, *more()))
        return self._calls[known]

    def next(self) -> int:
        """Return the number of the step that is about to be sent."""
        self.number += 1
        return self.number

    @property
    def token(self) -> bytes:
        """A token that no other step has, for claims that the latest step makes."""
        return f"{self._name}-{self.number}".encode()
