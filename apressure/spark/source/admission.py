"""Decides when a stream seals its next batch, with `minRowsPerBatch`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from apressure.spark.engine.looks import Look
from apressure.spark.options import Options


class Admission:
    """Waits for the messages of a batch.

    Args:
        options: The options of the source.
        clock: Returns seconds that never go back.
    """

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._min_rows = options.min_rows_per_batch
        self._delay = options.max_batch_delay
        self._clock = clock
        self._latest = -math.inf  # when the last batch was sealed

    def seconds_left(self, look: Callable[[], Look]) -> float:
        """Return for how many seconds a batch may wait for more messages; 0.0 if it must not wait.

        It does not wait if there are enough messages, or if no more can come. Nor does the first batch of a process: it
        may be one from before a crash.

        Args:
            look: Looks at the queues. It is called only where the answer depends on it.
        """
        left = max(0.0, self._latest + self._delay - self._clock())
        if not self._min_rows or not left:
            return 0.0
        found = look()
        return 0.0 if found.final or found.messages >= self._min_rows else left

    def sealed(self) -> None:
        """The process has a batch now, or has found no message to begin with."""
        self._latest = self._clock()

    @property
    def begun(self) -> bool:
        """Whether the process has looked for its first batch."""
        return self._latest > -math.inf
