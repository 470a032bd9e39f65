"""Work on many dead letters that goes on when the browser goes away: begun, watched and stopped by operators."""

from __future__ import annotations

import asyncio
import dataclasses
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


@dataclasses.dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is to do.

    Attributes:
        seen: The queue whose dead letters are requeued, moved or deleted.
        work: What is done with them.
        search: Which ones.
        handles: Of these only those with one of these handles; empty for all of them.
        rate: How many a second at most; None for no limit.
        who: Who has begun it.
        target: The queue to which they move.
    """

    seen: Seen
    work: Work
    search: DeadLetterSearch
    handles: Sequence[str]
    rate: float | None
    who: str
    target: Seen | None = None


class Job:
    """Works on dead letters of a queue.

    Args:
        request: What it is to do.

    Attributes:
        id: Its name.
        request: As given.
        state: `running`, `done`, `stopped` or `failed`.
        error: Why it has failed.
        began, ended: When, in seconds since 1970; None while it runs.
    """

    def __init__(self, request: JobRequest) -> None:
        self.id = secrets.token_hex(4)
        self.request = request
        self.state = "running"
        self.error = ""
        self.began = time.time()
        self.ended: float | None = None
        self._bulk = Bulk(
            request.seen.queue, request.work, request.search, handles=request.handles or None, rate=request.rate,
            target=None if request.target is None else request.target.queue,
        )  # fmt: skip
        self._task = background.start(self._run(), f"job {self.id} of the page")

    async def stop(self) -> None:
        """Stop it: what it has done is done, and the others are dead letters as before."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    @property
    def data(self) -> dict[str, Any]:
        """What the page says of it."""
        bulk, asked = self._bulk, self.request
        return {
            "id": self.id, "address": str(asked.seen.address), "server": asked.seen.server, "work": asked.work,
            "to": "" if asked.target is None else str(asked.target.address),
            "search": told(asked.search, asked.handles), "rate": asked.rate, "who": asked.who, "state": self.state,
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
            asked, done = self.request, self._bulk.done
            address, who = escaped(str(asked.seen.address)), escaped(asked.who)
            extra = {
                "event": "job_ended", "queue": asked.seen.address.name, "operation": asked.work, "who": who,
                "count": done, "error": self.error,
            }  # fmt: skip
            text = "the job of %s is %s: %s %s, %d dead letters"
            logger.info(text, who, state, asked.work, address, done, extra=extra)


class Jobs:
    """The jobs of a page, while it runs. After a restart of the page they are begun again by hand."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._closed = False

    def begin(self, request: JobRequest) -> Job:
        """Begin a job.

        Raises:
            NoJobError: Too many run, or the page ends.
        """
        if self._closed:
            raise NoJobError("The page ends. Begin the job when it runs again.")
        if sum(job.state == "running" for job in self._jobs.values()) >= MOST:
            raise NoJobError(f"{MOST} jobs are running. Wait for one to end, or stop one.")
        job = Job(request)
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
        return [job.data for job in jobs if seen is None or job.request.seen.queue is seen.queue]

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
