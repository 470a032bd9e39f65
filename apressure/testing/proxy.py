"""A TCP proxy in front of a server, which loses replies, cuts connections, is slow, or down, as a test asks.

It runs in a thread with an event loop of its own, so that it works while a test blocks, and for clients in other
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_PATIENCE = 30.0
"""Seconds that the thread has for what it is asked, which takes milliseconds."""


@dataclasses.dataclass
class Trouble:
    """What a proxy does wrong. A probability is for each portion of bytes, up to 64 KiB.

    Attributes:
        cut: Probability that the connection is cut instead of passing a request on.
        lose: Probability that it is cut instead of passing a reply on: the server has done what nobody hears of.
        silence: Probability that the reply is swallowed, and the connection stays open, silent from then on.
        twice: Probability that a reply is passed on twice, so that each later one is taken for the wrong request's.
        stall: Probability that a portion takes `stalled` seconds.
        stalled: Seconds of a stall.
        delay: Seconds that a portion takes at most; the time is random.
        lag: Seconds that every reply takes in addition. When the connection is cut, delayed replies are lost.
        down: Connections are refused. Call `Proxy.cut` as well, to cut those that are open.
        lose_next: How many replies are lost, each with its connection, before replies pass again.
    """

    cut: float = 0.0
    lose: float = 0.0
    silence: float = 0.0
    twice: float = 0.0
    stall: float = 0.0
    stalled: float = 0.0
    delay: float = 0.0
    lag: float = 0.0
    down: bool = False
    lose_next: int = 0


class Proxy:
    """Passes bytes on between clients of `url` and a server, as badly as `trouble` says; to begin with, well.

    It listens on a free port of 127.0.0.1 inside its block: `with Proxy(url) as proxy` or `async with`. The end of the
    block cuts every connection.

    Args:
        target: The server, `redis://host:port` or `unix:///path`, without TLS.
        rng: Draws the random numbers of `trouble`; seed it to repeat a run.

    Attributes:
        target: The server, for new connections; open connections keep theirs.
        trouble: What it does wrong. Change its attributes, or replace it, at any time and from any thread.
        rewrite: Changes each portion of replies; called in the proxy's thread. None cuts the connection.
        cuts: How often something that `Trouble` names was done, or a connection was cut; not counting mere delays.
        port: The port of the proxy.

    Raises:
        ValueError: The target is not a single server without TLS.
    """

    def __init__(self, target: str, rng: random.Random | None = None) -> None:
        self.target = target
        _place(target)
        self.trouble = Trouble()
        self.rewrite: Callable[[bytes], bytes | None] = bytes
        self.cuts = 0
        self.port = 0
        self._rng = rng or random.Random()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="apressure-proxy", daemon=True)
        self._started: Future[None] = Future()
        self._ended = asyncio.Event()

    @property
    def url(self) -> str:
        """Where clients connect to: the target's address with this proxy's host and port."""
        address = urlsplit(self.target)
        login, at, _ = address.netloc.rpartition("@")
        path = address.path
        if address.scheme == "unix":
            path = "/" + parse_qs(address.query).get("db", ["0"])[0]
        return f"redis://{login}{at}127.0.0.1:{self.port}{path or '/0'}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._open) // 2

    def cut(self) -> None:
        """Cut every connection, and drop delayed bytes. It accepts new connections, unless it is down."""
        done: Future[None] = Future()

        def act() -> None:
            self.cuts += self.connections
            self._abort(tuple(self._open))
            done.set_result(None)

        self._loop.call_soon_threadsafe(act)
        done.result(_PATIENCE)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._started.result(_PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(_PATIENCE)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _main(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set_result(None)
        await self._ended.wait()
        server.close()
        self._abort(tuple(self._open))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _abort(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        for writer in writers:
            writer.transport.abort()
            self._open.discard(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            if self.trouble.down:
                raise ConnectionRefusedError
            server, to_server = await _connect(self.target)
        except OSError:
            to_client.transport.abort()
            return
        both = (to_client, to_server)
        if self._ended.is_set() or self.trouble.down:  # meanwhile
            self._abort(both)
            return
        self._open.update(both)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client, to_server, both, self._spoil_request))
                group.create_task(self._pass_on(server, to_client, both, _Replies(self).spoil))
        finally:
            self._abort(both)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...],
        spoil: Callable[[bytes], list[bytes] | None],
    ) -> None:  # fmt: skip
        """Pass one direction on until it ends, or until `spoil` returns None."""
        pending, free_at = 0, 0.0  # delayed portions, and when the last of them leaves

        def leave(portion: bytes) -> None:
            nonlocal pending
            pending -= 1
            self._write(sink, portion)

        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                trouble = self.trouble
                if self.happens(trouble.stall):
                    await asyncio.sleep(trouble.stalled)
                elif trouble.delay:
                    await asyncio.sleep(self._rng.uniform(0, trouble.delay))
                if (portions := spoil(data)) is None:
                    break
                lag = trouble.lag if sink is both[0] else 0.0
                for number, portion in enumerate(portions):
                    if number:
                        await asyncio.sleep(0)  # as a segment of its own
                    if not (lag or pending):
                        self._write(sink, portion)
                        continue
                    free_at = max(self._loop.time() + lag, free_at + 1e-6)  # never before an earlier one
                    pending += 1
                    self._loop.call_at(free_at, leave, portion)
        self._abort(both)

    def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        if sink in self._open:
            sink.write(data)

    def _spoil_request(self, data: bytes) -> list[bytes] | None:
        return None if self.happens(self.trouble.cut) else [data]

    def happens(self, probability: float) -> bool:
        """Draw whether something happens, and count it."""
        happened = self._rng.random() < probability
        self.cuts += happened
        return happened


class _Replies:
    """Spoils the replies of one connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._silent = False

    def spoil(self, data: bytes) -> list[bytes] | None:
        proxy, trouble = self._proxy, self._proxy.trouble
        if trouble.lose_next:
            trouble.lose_next -= 1
            proxy.cuts += 1
            return None
        if proxy.happens(trouble.lose):
            return None
        if self._silent or proxy.happens(trouble.silence):
            self._silent = True
            return []
        rewritten = proxy.rewrite(data)
        if rewritten is None:
            return None
        if proxy.happens(trouble.twice):
            return [rewritten, rewritten]
        return [rewritten]


def _place(target: str) -> dict[str, Any]:
    """Return where a server is, as arguments of `open_connection` or `open_unix_connection`."""
    address = urlsplit(target)
    if address.scheme == "unix" and address.path:
        return {"path": unquote(address.path)}
    if address.scheme == "redis" and address.hostname and "," not in address.netloc:
        if not address.port:
            raise ValueError("a proxy's target has no port: write redis://host:port or unix:///path")
        return {"host": address.hostname, "port": address.port}
    raise ValueError(
        f"a proxy cannot stand before {address.scheme}://: write redis://host:port or unix:///path, a single server "
        "without TLS"
    )


async def _connect(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = _place(target)
    if "path" in place:
        return await asyncio.open_unix_connection(**place)
    return await asyncio.open_connection(**place)
