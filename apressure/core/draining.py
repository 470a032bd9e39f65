"""`drain` and `show_stack`: an operator has a worker end, or asks what it does, by its id."""

from __future__ import annotations

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration
from apressure.core.registration import Registry, Wish


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
            drained.

        Raises:
            TypeError: The id is not a string.
            ServerTooOldError: It is on a released okq, which knows no workers.
            PressureError: As for `pause`.

        Cancelled, they were told, or not.
        """
        return await self._ask_worker(worker_id, "drain")

    @with_deadline()
    async def show_stack(self, worker_id: str, *, deadline: float | None = None) -> int:
        """Ask a worker where the longest of its handlers is: `statistics().workers` tells that as its `stack`.

        It learns that within about five seconds, and then tells the current stack every five seconds, for about 15
        seconds: files, lines and functions, without values, in at most 4 kB. Those that can be drained can tell it,
        but for handlers in processes, as those of a `Runner`. A worker whose event loop is blocked tells nothing.

        Args:
            worker_id: Its id, as `statistics().workers` tells it.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many services of that worker were asked, on this queue; see `drain`, also for what it raises.

        Cancelled, they were asked, or not.
        """
        return await self._ask_worker(worker_id, "stack")

    async def _ask_worker(self, worker_id: str, what: Wish) -> int:
        encoded = validation.text(worker_id, "worker_id").encode(errors="surrogateescape")
        self.check()
        return 0 if self.registry is None else await self.registry.ask(encoded, what)
