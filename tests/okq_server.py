"""A released okq behind a socket, for tests: the commands of the specification, and no others.

It imports nothing from apressure. Events are in a `Store`, which outlives its servers as a Redis does. A test can have
it lose replies, and end it as a SIGKILL would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from typing import Any

import hiredis


class Refused(Exception):
    """An error reply."""


class Queue:
    """The events of one queue: ids that wait (the next one is the last), ids in flight with their ends, contents."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.claimed: dict[bytes, float] = {}
        self.items: dict[bytes, bytes] = {}
        self.consumers: set[Client] = set()


class Store:
    """All queues, and what a released okq does with them."""

    def __init__(self) -> None:
        self.queues: dict[bytes, Queue] = {}
        self.clients: set[Client] = set()

    def __getitem__(self, name: bytes) -> Queue:
        queue = self.queues.setdefault(name, Queue())
        for event, until in list(queue.claimed.items()):
            if time.monotonic() >= until:
                del queue.claimed[event]
                queue.waiting.append(event)
        return queue

    def push(self, name: bytes, event: bytes, contents: bytes, front: bool) -> str:
        queue = self[name]
        if event in queue.items:
            raise Refused(f"ERR duplicate event {event.decode(errors='surrogateescape')}")
        queue.items[event] = contents
        (queue.waiting.append if front else queue.waiting.appendleft)(event)
        for client in self.clients:
            if name in client.registered:
                client.notify(name)
        return "OK"

    def pop(self, name: bytes, expires: int) -> list[bytes] | None:
        queue = self[name]
        if not queue.waiting:
            return None
        event = queue.waiting.pop()
        if not expires:
            return [event, queue.items.pop(event, b"")]
        queue.claimed[event] = time.monotonic() + expires
        return [event, queue.items.get(event, b"")]

    def ack(self, name: bytes, event: bytes, redo: bool) -> int:
        queue = self[name]
        if event in queue.claimed:
            del queue.claimed[event]
            if redo:
                queue.waiting.append(event)
                return 1
        elif event in queue.waiting and not redo:
            queue.waiting.remove(event)
        else:
            return 0
        queue.items.pop(event, None)
        return 1

    def peek(self, name: bytes, at: int) -> list[bytes] | None:
        queue = self[name]
        return [queue.waiting[at], queue.items.get(queue.waiting[at], b"")] if queue.waiting else None

    def status(self, name: bytes) -> list[Any]:
        queue = self[name]
        consumers = sum(name in client.registered for client in self.clients)
        return [name, len(queue.waiting) + len(queue.claimed), len(queue.claimed), consumers]


class Client:
    """One client's connection."""

    def __init__(self, server: OkqServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.registered: list[bytes] = []
        self._server = server
        self._store = server.store
        self._reader, self._writer = reader, writer
        self._notified: asyncio.Queue[bytes] = asyncio.Queue(1)

    def notify(self, name: bytes) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._notified.put_nowait(name)

    def abort(self) -> None:
        self._writer.transport.abort()

    async def serve(self) -> None:
        parser = hiredis.Reader()
        while data := await self._reader.read(1 << 16):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                verb = words[0].decode().upper()
                self._server.calls[verb] += 1
                try:
                    reply = await self._execute(verb, words[1:])
                except Refused as error:
                    reply = error
                if self._server.losses[verb] > 0:
                    self._server.losses[verb] -= 1
                    self.abort()
                    return
                self._writer.write(packed(reply))

    async def _execute(self, verb: str, args: list[bytes]) -> Any:
        store = self._store
        least = {"QLPUSH": 3, "QRPUSH": 3, "QACK": 2, "QLPEEK": 1, "QRPEEK": 1, "QRPOP": 1, "QNOTIFY": 1, "QFLUSH": 1}
        if len(args) < least.get(verb, 0):
            raise Refused("ERR missing args")
        match verb:
            case "QLPUSH" | "QRPUSH":  # what comes after the contents is ignored
                return store.push(*args[:3], front=verb == "QRPUSH")
            case "QRPOP":
                has_lease = len(args) > 2 and args[1].upper() == b"EX"
                return store.pop(args[0], number(args[2], "expires") if has_lease else 30)
            case "QACK":
                return store.ack(args[0], args[1], args[2:3] == [b"REDO"])
            case "QLPEEK" | "QRPEEK":
                return store.peek(args[0], 0 if verb == "QLPEEK" else -1)
            case "QREGISTER":
                self.registered = args
                return "OK"
            case "QNOTIFY":
                return await self._wait(number(args[0], "timeout"))
            case "QFLUSH":
                store.queues.pop(args[0], None)
                return "OK"
            case "QSTATUS":
                return [store.status(name) for name in args or sorted(store.queues)]
            case "PING":
                return "PONG"
        raise Refused(f'ERR unknown command "{verb}"')

    async def _wait(self, timeout: int) -> bytes | None:
        while not self._notified.empty():
            self._notified.get_nowait()
        for name in random.sample(self.registered, len(self.registered)):
            if self._store[name].waiting:
                return name
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._notified.get()
        return None


class OkqServer:
    """A released okq.

    Attributes:
        port: Where it listens; the same one after each `start`.
        losses: How many replies to a command it loses, by its name: it carries the command out, and disconnects.
        calls: How often each command came.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self.port = 0
        self.losses: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"okq://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End it, and wait until nothing of it is left."""
        self.kill()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def kill(self) -> None:
        """End it: no client gets another reply."""
        if self._server is not None:
            self._server.close()
        for client in list(self.store.clients):
            client.abort()
        for task in self._tasks:
            task.cancel()
        self.store.clients.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.store.clients.add(client)
        try:
            await client.serve()
        except (ConnectionError, asyncio.CancelledError):  # asyncio would complain about a cancelled handler
            pass
        finally:
            self.store.clients.discard(client)
            writer.close()


def number(given: bytes, what: str) -> int:
    """A whole number, as Go's Atoi reads it."""
    try:
        return int(given)
    except ValueError:
        raise Refused(f'ERR bad {what} value: strconv.Atoi: parsing "{given.decode()}": invalid syntax') from None


def packed(reply: Any) -> bytes:
    """Encode a reply."""
    match reply:
        case None:
            return b"$-1\r\n"
        case str():
            return b"+%b\r\n" % reply.encode()
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case Refused():
            return b"-%b\r\n" % str(reply).encode(errors="surrogateescape")
    return b"*%d\r\n" % len(reply) + b"".join(packed(one) for one in reply)
