"""`drain`: an operator has a worker end, by its id."""

from __future__ import annotations

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration
from apressure.core.registration import Registry


class Drainable(Administration):
    """A queue that knows who works on it."""

    @property
    def registry(self) -> Registry | None:
        """Where those that work on the queue register; None where this object cannot do that."""
        return None

    @with_deadline()
    async def drain(self, worker_id: str, *, deadline: float | None = None) -> int:
        """Ask a worker to end as after its first SIGTERM: it receives no more, and finishes what it has in hand.

        What does not finish within its `shutdown_timeout` goes back, as after a SIGTERM.

        It learns that within about five seconds. `serve`, `pipe`, `apressure worker` and a `Runner` can be drained;
        `consumer()` blocks and Spark queries cannot.

        Args:
            worker_id: Its id, as `statistics().workers` tells it.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many services of that worker were told, on this queue; 0 for an id that nothing has which can be
            drained. A FileQueue, an `okq://` address and `scripting=False` know no workers: 0.

        Raises:
            TypeError: The id is not a string.
            PressureError: As for `pause`.

        Cancelled, they were told, or not.
        """
        encoded = validation.text(worker_id, "worker_id").encode(errors="surrogateescape")
        self.check()
        return 0 if self.registry is None else await self.registry.drain(encoded)
