"""A TCP relay with a changeable target and delayed replies, for failovers and lagging replicas.

It runs in a thread, so that it works while a test blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future


class Line(ABC):
    """Passes bytes on between clients and a server. A subclass says where the server is, and how they are passed on."""

    def __init__(self) -> None:
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _where(self) -> tuple[str, int]: ...

    @abstractmethod
    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...],
        request: bool,
    ) -> None:  # fmt: skip
        """Pass one direction on until it ends: requests or replies."""

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def end(self, server: asyncio.Server) -> None:
        """Cut every connection, and wait until nothing of this line runs any more."""
        server.close()
        self.abort(tuple(self._open))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abort(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        for writer in writers:
            writer.transport.abort()
            self._open.discard(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection(*self._where())
        except OSError:
            to_client.transport.abort()
            return
        both = (to_client, to_server)
        self._open.update(both)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client, to_server, both, request=True))
                group.create_task(self._pass_on(server, to_client, both, request=False))
        finally:
            self.abort(both)


class Relay(Line):
    """Passes bytes on between clients of `port` and the target.

    Attributes:
        target: The port of the target, for new connections; open connections keep theirs.
        rewrite: Changes a piece of the target's replies.
        lag: Seconds that every byte from the target is delayed. When a connection is cut or the target dies, delayed
            bytes are lost.
        port: The port of the relay.
    """

    def __init__(self, target: int, lag: float = 0.0) -> None:
        super().__init__()
        self.target = target
        self.lag = lag
        self.rewrite: Callable[[bytes], bytes] = bytes
        self.port = 0
        self._loop = asyncio.new_event_loop()

    def cut(self) -> None:
        """Cut every connection, and drop the delayed bytes."""
        done: Future[None] = Future()

        def act() -> None:
            self.abort(tuple(self._open))
            done.set_result(None)

        self._loop.call_soon_threadsafe(act)
        done.result(10)

    def _where(self) -> tuple[str, int]:
        return "127.0.0.1", self.target

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...],
        request: bool,
    ) -> None:  # fmt: skip
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not request:
                    data = self.rewrite(data)
                if not request and self.lag:
                    self._loop.call_later(self.lag, self._write, sink, data)  # equal lags keep the order
                else:
                    self._write(sink, data)
        self.abort(both)

    def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        if sink in self._open:
            sink.write(data)

    async def _main(self, started: Future[asyncio.Event]) -> None:
        ended = asyncio.Event()
        server = await self.listen()
        self.port = server.sockets[0].getsockname()[1]
        started.set_result(ended)
        await ended.wait()
        await self.end(server)


@contextlib.contextmanager
def relay(target: int, lag: float = 0.0) -> Iterator[Relay]:
    """Run a relay to a port of this machine.

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
