"""What has gone wrong beside the loop of a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Failures:
    """What the program does not know yet: the first failure since its last iteration.

    Attributes:
        noted: The failure; None if there is none.
    """

    def __init__(self) -> None:
        self.noted: Exception | None = None
        self._on_lost: Callable[[Exception], None] | None = None

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, at the next failure."""
        self._on_lost = callback

    def note(self, error: Exception) -> None:
        """Have the next iteration, or the end of the block, raise this."""
        self.noted = self.noted or error

    def tell(self, error: Exception) -> None:
        """Call the program's callback."""
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            asyncio.get_running_loop().call_soon(callback, error)  # it may raise

    def check(self) -> None:
        """Raise what was noted, once."""
        error, self.noted = self.noted, None
        if error is not None:
            raise error
