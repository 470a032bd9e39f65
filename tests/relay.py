"""A TCP address whose target can be changed, and whose answers can be late: for failovers and lagging replicas.

It runs in a thread of its own, so that a test may block while bytes flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any


class Relay:
    """Passes bytes on between whoever connects to `port` and the target.

    Attributes:
        target: The port that new connections are passed on to; those that are open stay where they are.
        lag: Seconds that every byte from the target takes. Bytes that are on their way when a connection is cut, or
            when the target dies, never arrive.
        port: Where to connect to.
    """

    def __init__(self, target: int, lag: float = 0.0) -> None:
        self.target = target
        self.lag = lag
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Cut every connection, with what is on its way."""
        done: Future[None] = Future()

        def act() -> None:
            self._abort(tuple(self._open))
            done.set_result(None)

        self._loop.call_soon_threadsafe(act)
        done.result(10)

    def _abort(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        for writer in writers:
            writer.transport.abort()
            self._open.discard(writer)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            target, to_target = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            to_client.transport.abort()
            return
        both = (to_client, to_target)
        self._open.update(both)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client, to_target, both, late=False))
                group.create_task(self._pass_on(target, to_client, both, late=True))
        finally:
            self._abort(both)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...],
        late: bool,
    ) -> None:  # fmt: skip
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if late and self.lag:
                    self._loop.call_later(self.lag, self._write, sink, data)  # in order: timers of one lag are
                else:
                    self._write(sink, data)
        self._abort(both)

    def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        if sink in self._open:
            sink.write(data)

    async def _main(self, started: Future[asyncio.Event]) -> None:
        ended = asyncio.Event()
        tasks: set[asyncio.Task[Any]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set_result(ended)
        await ended.wait()
        server.close()
        self._abort(tuple(self._open))
        if tasks:
            await asyncio.wait(tasks)


@contextlib.contextmanager
def relay(target: int, lag: float = 0.0) -> Iterator[Relay]:
    """A relay to a port of this machine.

    Args:
        target: See `Relay`.
        lag: See `Relay`.
    """
    made = Relay(target, lag)
    started: Future[asyncio.Event] = Future()
    loop = made._loop

    def run() -> None:
        try:
            loop.run_until_complete(made._main(started))
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="relay", daemon=True)
    thread.start()
    ended = started.result(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
