"""Jobs at a steady rate: `python -m tests.benchmarks.others.steady LIBRARY work|produce URL COUNT [RATE]`.

Each program prints one line of JSON. `work` does COUNT jobs of 10 milliseconds, 32 at a time, and says how many seconds
after its `put` each began; `produce` puts COUNT jobs, so many a second. Both say how much processor time they took, and
leave out a fifth more jobs at the beginning. The very first job is put by itself (COUNT is 0): the worker then says
that it is ready. The settings are each library's own, but for what is said here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

from tests.benchmarks.others.measure import NAME, fastest_loop, warm_up

CONCURRENCY: Final = 32
SECONDS: Final = 0.01
"""How long a job takes: it waits, as for a database."""

Put = Callable[[float], Awaitable[object]]
"""Put a job that has a number: when it was put, by the clock of the machine."""


class Jobs:
    """What a worker does, and what is known of it.

    Args:
        count: How many jobs are measured.

    Attributes:
        finished: Set after the last job.
    """

    def __init__(self, count: int) -> None:
        self.finished = asyncio.Event()
        self._left = 1 + warm_up(count) + count
        self._count = count
        self._late: list[float] = []
        self._cpu = 0.0
        self._lock = threading.Lock()

    def begin(self, put: float) -> None:
        """A job has begun."""
        late = time.monotonic() - put
        with self._lock:
            if self._left == 1 + warm_up(self._count) + self._count:
                print("ready", file=sys.__stdout__, flush=True)
            self._left -= 1
            if self._left < self._count:
                self._late.append(late)
            elif self._left == self._count:
                self._cpu = time.process_time()

    async def do(self, put: float) -> None:
        """Do a job."""
        self.begin(put)
        await asyncio.sleep(SECONDS)
        if not self._left:
            self.finished.set()

    def do_in_a_thread(self, put: float) -> None:
        """Do a job in a thread; end the process with the result after the last one."""
        self.begin(put)
        time.sleep(SECONDS)
        if not self._left:
            self.tell()

    def tell(self) -> None:
        """Print the result, and end."""
        end({"late": self._late, "cpu": time.process_time() - self._cpu})


def end(result: dict[str, Any]) -> None:
    """Print a result, and end the process: the end of a worker is not measured."""
    result["version"] = version(LIBRARIES[sys.argv[1]][2])
    print(json.dumps(result), file=sys.__stdout__, flush=True)
    os._exit(0)


# Each library: how its jobs are put, and how they are done until the worker is cancelled.


@asynccontextmanager
async def put_by_arq(url: str) -> AsyncIterator[Put]:
    from arq import create_pool
    from arq.connections import RedisSettings

    pool = await create_pool(RedisSettings.from_dsn(url))
    yield lambda put: pool.enqueue_job("work", put)


async def work_by_arq(url: str, jobs: Jobs, **options: Any) -> None:
    from arq.connections import RedisSettings
    from arq.worker import Worker, func

    async def work(ctx: dict[Any, Any], put: float) -> None:
        await jobs.do(put)

    settings = RedisSettings.from_dsn(url)
    await Worker([func(work, name="work")], redis_settings=settings, max_jobs=CONCURRENCY, **options).async_run()


async def work_by_arq_that_polls_often(url: str, jobs: Jobs) -> None:
    await work_by_arq(url, jobs, poll_delay=0.01)


@asynccontextmanager
async def put_by_saq(url: str) -> AsyncIterator[Put]:
    from saq import Queue

    queue = Queue.from_url(url)
    yield lambda put: queue.enqueue("work", put=put)


async def work_by_saq(url: str, jobs: Jobs) -> None:
    from saq import Queue, Worker

    async def work(ctx: dict[str, Any], *, put: float) -> None:
        await jobs.do(put)

    await Worker(Queue.from_url(url), [("work", work)], concurrency=CONCURRENCY).start()


def taskiq_broker(url: str, work: Callable[[float], Awaitable[None]]) -> tuple[Any, Any]:
    """Return taskiq's broker, and its task."""
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(url)
    return broker, broker.register_task(work, task_name="work")


@asynccontextmanager
async def put_by_taskiq(url: str) -> AsyncIterator[Put]:
    broker, task = taskiq_broker(url, nothing)
    await broker.startup()
    yield task.kiq


async def work_by_taskiq(url: str, jobs: Jobs) -> None:
    from taskiq.api import run_receiver_task

    async def work(put: float) -> None:
        await jobs.do(put)

    await run_receiver_task(taskiq_broker(url, work)[0], run_startup=True, max_async_tasks=CONCURRENCY)


@asynccontextmanager
async def put_by_streaq(url: str) -> AsyncIterator[Put]:
    from streaq import Worker

    worker = Worker(url)
    task = worker.task(name="work")(nothing)

    async def put(when: float) -> None:
        await task.enqueue(when)

    async with worker:
        yield put


async def work_by_streaq(url: str, jobs: Jobs) -> None:
    from streaq import Worker

    worker = Worker(url, concurrency=CONCURRENCY)

    @worker.task(name="work")
    async def work(put: float) -> None:
        await jobs.do(put)

    await worker.run_async()


def celery_application(url: str, do: Callable[[float], None]) -> tuple[Any, Any]:
    """Return Celery's application, and its task. It keeps no results, as by default."""
    from celery import Celery

    application = Celery(NAME, broker=url)

    @application.task(name="work")
    def work(put: float) -> None:
        do(put)

    return application, work


@asynccontextmanager
async def put_by_celery(url: str) -> AsyncIterator[Put]:
    _, task = celery_application(url, lambda put: None)

    async def put(when: float) -> None:
        task.delay(when)  # it blocks the event loop

    yield put


async def work_by_celery(url: str, jobs: Jobs) -> None:
    application, _ = celery_application(url, jobs.do_in_a_thread)
    arguments = ["worker", "--pool=threads", f"--concurrency={CONCURRENCY}", "--loglevel=ERROR"]
    application.worker_main(arguments)


@asynccontextmanager
async def put_by_bullmq(url: str) -> AsyncIterator[Put]:
    from bullmq import Queue

    queue = Queue(NAME, {"connection": url})
    yield lambda put: queue.add("work", {"put": put})


async def work_by_bullmq(url: str, jobs: Jobs) -> None:
    from bullmq import Worker

    async def work(job: Any, token: str) -> None:
        await jobs.do(job.data["put"])

    await Worker(NAME, work, {"connection": url, "concurrency": CONCURRENCY, "autorun": False}).run()


def ours(kind: str, url: str) -> AbstractAsyncContextManager[Any]:
    """Open a queue of apressure."""
    import apressure

    return getattr(apressure, kind)(NAME, url=url, codec="json")  # type: ignore[no-any-return]


@asynccontextmanager
async def put_by_us(url: str, kind: str = "AsyncQueue") -> AsyncIterator[Put]:
    async with ours(kind, url) as queue:
        await queue.create(exist_ok=True)
        yield lambda put: queue.put({"put": put})


async def work_by_us(url: str, jobs: Jobs, kind: str = "AsyncQueue") -> None:
    import apressure

    async def work(item: dict[str, float]) -> None:
        await jobs.do(item["put"])

    async with ours(kind, url) as queue:
        await queue.create(exist_ok=True)
        await apressure.serve(work, queue, concurrency=CONCURRENCY, shared=True)


@asynccontextmanager
async def put_a_task_of_ours(url: str) -> AsyncIterator[Put]:
    async with put_by_us(url, "TaskQueue") as put:
        yield put


async def do_tasks_of_ours(url: str, jobs: Jobs) -> None:
    await work_by_us(url, jobs, "TaskQueue")


async def nothing(put: float) -> None:
    """Stand for the work where jobs are put."""


Producing = Callable[[str], AbstractAsyncContextManager[Put]]
Working = Callable[[str, Jobs], Awaitable[None]]

LIBRARIES: Final[dict[str, tuple[Producing, Working, str]]] = {
    "AsyncQueue": (put_by_us, work_by_us, "apressure"),
    "TaskQueue": (put_a_task_of_ours, do_tasks_of_ours, "apressure"),
    "arq": (put_by_arq, work_by_arq, "arq"),
    "arq, poll_delay=0.01": (put_by_arq, work_by_arq_that_polls_often, "arq"),
    "SAQ": (put_by_saq, work_by_saq, "saq"),
    "taskiq": (put_by_taskiq, work_by_taskiq, "taskiq-redis"),
    "streaQ": (put_by_streaq, work_by_streaq, "streaq"),
    "Celery": (put_by_celery, work_by_celery, "celery"),
    "BullMQ": (put_by_bullmq, work_by_bullmq, "bullmq"),
}
"""How jobs are put, how they are done, and the package that has a version."""


async def produce(producing: Producing, url: str, count: int, rate: float) -> None:
    """Put jobs, so many a second, without waiting for those before."""
    puts: list[asyncio.Task[object]] = []

    async def one() -> None:
        await put(time.monotonic())

    async with producing(url) as put:
        cpu, begin = time.process_time(), time.monotonic()
        for number in range(warm_up(count) + count):
            if number == warm_up(count):
                cpu = time.process_time()
            if (early := begin + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(early)
            puts.append(asyncio.create_task(one()))
        await asyncio.gather(*puts)
        end({"cpu": time.process_time() - cpu, "rate": (warm_up(count) + count) / (time.monotonic() - begin)})


async def work(working: Working, url: str, count: int) -> None:
    """Do jobs."""
    jobs = Jobs(count)
    worker = asyncio.ensure_future(working(url, jobs))
    finished = asyncio.ensure_future(jobs.finished.wait())
    await asyncio.wait((worker, finished), return_when=asyncio.FIRST_COMPLETED)
    if not finished.done():
        await worker
        raise RuntimeError("the worker ended before it had done its jobs")
    jobs.tell()


def main() -> None:
    """Do what the command line says."""
    name, what, url, count, *rate = sys.argv[1:]
    producing, working, _ = LIBRARIES[name]
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        if what == "produce":
            runner.run(produce(producing, url, int(count), float(rate[0])))
        else:
            runner.run(work(working, url, int(count)))


if __name__ == "__main__":
    main()
