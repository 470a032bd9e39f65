"""Work on many dead letters that goes on when the browser goes away: begun, watched and stopped by operators."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from apressure.concurrency import background
from apressure.core.searching import DeadLetterSearch
from apressure.exceptions import PressureError
from apressure.logs import escaped
from apressure.monitor.bulk import Bulk, Work
from apressure.monitor.monitor import Seen

logger = logging.getLogger("apressure")

MOST: Final = 20
"""Jobs at a time."""

_KEPT: Final = 100
"""Jobs that have ended are shown, the latest ones."""


class NoJobError(Exception):
    """No job is begun; the text says why."""


class Job:
    """Requeues, moves or deletes dead letters of a queue.

    Args:
        seen: The queue.
        work: What is done with them.
        search: Which ones.
        handles: Of these only those with one of these handles; empty for all of them.
        rate: How many a second at most; None for no limit.
        who: Who has begun it.
        target: The queue to which they move.

    Attributes:
        id: Its name.
        seen, work, search, handles, rate, who, target: As given.
        state: `running`, `done`, `stopped` or `failed`.
        error: Why it has failed.
        began, ended: When, in seconds since 1970; None while it runs.
    """

    def __init__(
        self, seen: Seen, work: Work, search: DeadLetterSearch, handles: Sequence[str], rate: float | None, who: str,
        target: Seen | None = None,
    ) -> None:  # fmt: skip
        self.id = secrets.token_hex(4)
        self.seen = seen
        self.work = work
        self.search = search
        self.handles = handles
        self.rate = rate
        self.who = who
        self.target = target
        self.state = "running"
        self.error = ""
        self.began = time.time()
        self.ended: float | None = None
        into = None if target is None else target.queue
        self._bulk = Bulk(seen.queue, work, search, handles=handles or None, rate=rate, target=into)
        self._task = background.start(self._run(), f"job {self.id} of the page")

    async def stop(self) -> None:
        """Stop it: what it has done is done, and the others are dead letters as before."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    @property
    def data(self) -> dict[str, Any]:
        """What the page says of it."""
        bulk = self._bulk
        return {
            "id": self.id, "address": str(self.seen.address), "server": self.seen.server, "work": self.work,
            "to": "" if self.target is None else str(self.target.address), "search": told(self.search, self.handles),
            "rate": self.rate, "who": self.who, "state": self.state,
            "error": self.error, "began": self.began, "ended": self.ended, "looked": bulk.looked, "total": bulk.total,
            "done": bulk.done, "gone": bulk.gone, "waiting": bulk.waiting,
        }  # fmt: skip

    async def _run(self) -> None:
        state = "stopped"
        try:
            await self._bulk.run()
            state = "done"
        except (PressureError, OSError, ValueError) as error:
            state, self.error = "failed", str(error)
        except Exception:  # what it says may be anything
            state, self.error = "failed", "The log of the page says what."
            logger.exception("a job of the page failed")
        finally:
            self.state, self.ended = state, time.time()
            address = escaped(str(self.seen.address))
            extra = {
                "event": "job_ended", "queue": self.seen.address.name, "operation": self.work, "who": escaped(self.who),
                "count": self._bulk.done, "error": self.error,
            }  # fmt: skip
            logger.info(
                "the job of %s is %s: %s %s, %d dead letters", extra["who"], state, self.work, address, self._bulk.done,
                extra=extra,
            )  # fmt: skip


class Jobs:
    """The jobs of a page, while it runs. After a restart of the page they are begun again by hand."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._closed = False

    def begin(
        self, seen: Seen, work: Work, search: DeadLetterSearch, handles: Sequence[str], rate: float | None, who: str,
        target: Seen | None = None,
    ) -> Job:  # fmt: skip
        """Begin a job.

        Raises:
            NoJobError: Too many run, or the page ends.
        """
        if self._closed:
            raise NoJobError("The page ends. Begin the job when it runs again.")
        if sum(job.state == "running" for job in self._jobs.values()) >= MOST:
            raise NoJobError(f"{MOST} jobs are running. Wait for one to end, or stop one.")
        job = Job(seen, work, search, handles, rate, who, target)
        self._jobs[job.id] = job
        ended = [job.id for job in self._jobs.values() if job.state != "running"]
        for job_id in ended[:-_KEPT]:
            del self._jobs[job_id]
        return job

    def find(self, job_id: str) -> Job | None:
        """Return the job with this id."""
        return self._jobs.get(job_id)

    def shown(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        """Return what the page says of jobs, of one queue or of all: the latest first."""
        jobs = reversed(self._jobs.values())
        return [job.data for job in jobs if seen is None or job.seen.queue is seen.queue]

    async def aclose(self) -> None:
        """Stop all of them, and begin no other ones: a request in progress may ask for one meanwhile."""
        self._closed = True
        for job in list(self._jobs.values()):
            await job.stop()


def told(search: DeadLetterSearch, handles: Sequence[str] = ()) -> str:
    """Return what a search looks for, in words; without a text, which may be a part of a message."""
    ids = list(search.ids or ())
    parts = [
        f"{len(handles):,} chosen ones" if handles else "",
        f"with the id {ids[0]}" if len(ids) == 1 else f"{len(ids):,} chosen ones" if ids else "",
        f"with the error {search.error!r}" if search.error else "",
        "with a certain text" if search.text else "",
        f"since {search.since:%Y-%m-%d %H:%M:%S %Z}" if search.since else "",
        f"before {search.until:%Y-%m-%d %H:%M:%S %Z}" if search.until else "",
    ]
    return ", ".join(filter(None, parts)) or "all"
