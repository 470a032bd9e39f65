"""Clients that are there to be killed: `python -m tests.chaos.workers URL`.

The process imports everything once, then forks a worker for each line `start ID KIND QUEUE TAG LOG` of its input, and
kills one for each `kill ID`, with an answer in one line each. `stop ID` and `go ID` have one stand still, and go on. A
worker opens a client of its own, works for ever, and notes what it knows with one `write` a line, so that nothing of it
is lost with the worker:

* `put MESSAGE`: the put returned.
* `got MESSAGE ATTEMPTS`: the message was handed out.
* `acked MESSAGE`: the ack returned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

from apressure import AsyncQueue, FileQueue, LeaseLostError
from tests.reference import ReferenceQueue, connect

LEASE: Final = 0.6
PUT_MANY: Final = 7
GET_MANY: Final = 10

Log = Callable[[str], None]
AnyQueue = AsyncQueue[bytes] | FileQueue[bytes]


def message(tag: str, number: int) -> bytes:
    return f"{tag}:{number}:".encode()


async def put(queue: AnyQueue, tag: str, log: Log) -> None:
    number = 0
    while True:
        await queue.put(message(tag, number))
        log(f"put {tag}:{number}:")
        number += 1


async def put_many(queue: AnyQueue, tag: str, log: Log) -> None:
    number = 0
    while True:
        messages = [message(tag, number + i) for i in range(PUT_MANY)]
        await queue.put_many(messages)
        log("\n".join(f"put {one.decode()}" for one in messages))
        number += PUT_MANY


async def exclusive(queue: AsyncQueue[bytes], tag: str, log: Log) -> None:
    number = 0
    while True:
        async with queue.producer(close=False, exclusive=True, lease=LEASE) as producer:
            while True:
                await producer.put(message(tag, number))
                log(f"put {tag}:{number}:")
                number += 1


async def get(queue: AsyncQueue[bytes], _: str, log: Log) -> None:
    while True:
        log(f"got {(await queue.get()).decode()} 1")


async def get_many(queue: AsyncQueue[bytes], _: str, log: Log) -> None:
    while True:
        messages = await queue.get_many(GET_MANY)
        log("\n".join(f"got {one.decode()} 1" for one in messages))


async def receive(queue: AsyncQueue[bytes], _: str, log: Log) -> None:
    while True:
        try:
            delivery = await queue.receive(lease=LEASE)
            log(f"got {delivery.item.decode()} {delivery.attempts}")
            await delivery.ack()
            log(f"acked {delivery.item.decode()}")
        except LeaseLostError:  # a machine so busy that the heart did not beat in time: what was in flight comes again
            continue


async def consumer(queue: AsyncQueue[bytes], _: str, log: Log) -> None:
    while True:
        try:
            async with queue.consumer(lease=LEASE) as block:
                async for item in block:
                    log(f"got {item.decode()} {block.attempts}")
                    await asyncio.sleep(0.001)
        except LeaseLostError:
            continue


async def shared(queue: AsyncQueue[bytes], _: str, log: Log) -> None:
    while True:
        try:
            async with queue.consumer(shared=True, lease=LEASE, ack="manual") as block:
                async for delivery in block:
                    log(f"got {delivery.item.decode()} {delivery.attempts}")
                    await asyncio.sleep(0.001)
                    await delivery.ack()
                    log(f"acked {delivery.item.decode()}")
        except LeaseLostError:
            continue


KINDS: Final[dict[str, Callable[[AsyncQueue[bytes], str, Log], Awaitable[None]]]] = {
    **{work.__name__: work for work in (put, put_many, exclusive, get, get_many, receive, consumer, shared)},
    "plain": get,
}
PLAIN: Final = {"plain", "reference"}
"""Those that work step by step: a role that they had when they were killed stays taken."""


def log_in(path: str) -> Log:
    """Return a function that appends a line to a file with one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(text: str) -> None:
        os.write(descriptor, f"{text}\n".encode())

    return log


def run(url: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log = log_in(path)
    if kind == "reference":
        with connect(url) as client:
            other = ReferenceQueue(client, name, client_id=tag)
            while True:
                log(f"got {other.get().decode()} 1")

    async def work() -> None:
        async with AsyncQueue(name, url=url, client_id=tag, scripting=kind != "plain") as queue:
            await KINDS[kind](queue, tag, log)

    asyncio.run(work())


def main(url: str, run: Callable[..., None] = run) -> None:
    """Fork and kill workers as the input says, until it ends."""
    workers: dict[str, int] = {}
    for line in sys.stdin:
        command, identity, *arguments = line.split()
        if command == "start":
            pid = os.fork()
            if pid == 0:
                try:
                    run(url, *arguments)
                    print(f"the worker {identity} ended by itself", file=sys.stderr)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)  # no worker that is to be killed ends by itself
            workers[identity] = pid
            print("started", flush=True)
        elif command in {"stop", "go"}:
            os.kill(workers[identity], signal.SIGSTOP if command == "stop" else signal.SIGCONT)
            print(command, flush=True)
        else:
            pid = workers.pop(identity)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
