"""How long to pause before the next try: each pause is longer than the one before, up to a limit, and jittered."""

from __future__ import annotations

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Backoff:
    """Exponential backoff with jitter. It keeps no state: the caller counts its failures.

    Attributes:
        first: Seconds of the first pause.
        most: Seconds of the longest pause.
        factor: How many times longer each pause is than the one before.
    """

    first: float
    most: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """Return the seconds to pause after so many failures before this one.

        The jitter takes away up to half, so that clients that failed together do not try again together.
        """
        longest: float = min(self.most, self.first * self.factor ** min(failures, 60))
        return longest * random.uniform(0.5, 1.0)
