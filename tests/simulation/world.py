"""A simulated world with one server, and processes that crash, stand still or block.

* A process is a host of simloom. Its lease thread is a host of its own, since it goes on while the event loop is
  blocked. A crash ends both, without any cleanup.
* A process that stands still (SIGSTOP, a suspended machine) runs nothing for a while, and then everything that came
  meanwhile. Time goes on for it. A process that blocks does the same, but its lease thread goes on.
* The server is fakeredis behind a socket: connections break, and replies are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

import fakeredis
import redis.asyncio
import simloom
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket import AsyncFakeSocket
from fakeredis.commands_mixins import scripting_mixin
from simloom._context import current_host

from apressure import Client, ServerUnavailableError
from apressure.connection.leases import renewer
from apressure.connection.leases.clock import since_boot

URL: Final = "redis://server:6379"
END: Final = 600.0
"""Simulated seconds after which something is stuck."""


class Sim:
    """What a run has: the world, its server, and its processes.

    Args:
        world: Of simloom.

    Attributes:
        store: What the server holds.
        faults: How often each fault has come.
    """

    def __init__(self, world: simloom.World) -> None:
        self.store = fakeredis.FakeServer()
        self.faults: dict[str, int] = {}
        self.latency = 0.0
        """The longest time, in seconds, that something is on its way."""
        self.names: tuple[bytes, ...] = ()
        """The queues whose bounds are watched."""
        self.blocked: list[tuple[_Socket, bytes, list[bytes]]] = []
        """The connections that wait, the longest first: for which key, and what they do then."""
        self.over = False
        self.broken = ""
        """What the server has seen to be wrong."""
        self._world = world
        self._loop: Any = world._loop
        self._server = world.host("server")
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._stopped: dict[int, dict[int, asyncio.Handle]] = {}
        self._is_crashed = self._loop._is_crashed_context
        self._loop._is_crashed_context = self._does_not_run

    async def start(self) -> None:
        """Start the server."""
        # On a slow network, more faults hit a step that is on its way.
        self.latency = (0.002, 0.05, 0.3)[self.draw(3)]
        self._world.net.set_latency(0.0001, self.latency)

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(lambda: _Connection(self), "server", 6379)

        await self._server.spawn(serve, name="server")

    def draw(self, bound: int) -> int:
        """Return a number from 0 to bound - 1, which follows from the seed."""
        return simloom.draw("choice", bound)

    def seconds(self, longest: float) -> float:
        """Return up to `longest` seconds, which follow from the seed."""
        return longest * simloom.draw("seconds", 1000) / 1000

    def process(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start a process. Its name must be new."""
        task = self._tasks[name] = self._world.host(name).spawn(work, name=name)
        return task

    def alive(self, name: str) -> bool:
        """Whether a process has neither ended nor crashed."""
        return not self._world.host(name).crashed and not self._tasks[name].done()

    def crash(self, name: str) -> None:
        """End a process and its threads, without cleanup. Its connections are reset."""
        self._note("crashes")
        for host in self._hosts(name):
            self._go_on(host)
            host.crash()

    def reset(self, name: str) -> None:
        """Break all connections of a process."""
        self._note("connections broken")
        for host in self._hosts(name):
            self._world.net.reset_connections(host, self._server)

    async def stop(self, name: str, seconds: float, threads: bool = True) -> None:
        """Have a process stand still; without `threads` only its event loop, as if a handler blocked it."""
        self._note("processes stopped" if threads else "event loops blocked")
        hosts = [host for host in self._hosts(name, threads) if id(host) not in self._stopped and not host.crashed]
        for host in hosts:
            self._stopped[id(host)] = {}
        await asyncio.sleep(seconds)
        for host in hosts:
            self._go_on(host)

    def serve_blocked(self) -> None:
        """Serve connections that wait, as long as there is something for one of them."""
        while (found := next((one for one in self.blocked if one[0].has(one[1])), None)) is not None:
            found[0].serve(found[2])

    def lasting_keys(self) -> list[bytes]:
        """The keys of the server that do not expire."""
        return [key for key, item in self.store.dbs[0]._dict.items() if item.expireat is None]

    def end(self) -> None:
        """Let everything go on, so that it can be cancelled."""
        self.over = True
        for host in self._world.hosts:
            self._go_on(host)

    def _note(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def _hosts(self, name: str, threads: bool = True) -> list[simloom.Host]:
        return [host for host in self._world.hosts if host.name == name or (threads and host.name == thread_of(name))]

    def _go_on(self, host: simloom.Host) -> None:
        self._loop._ready += self._stopped.pop(id(host), {}).values()

    def _does_not_run(self, handle: asyncio.Handle) -> bool:
        """The loop asks whether to drop a callback. Those of a process that stands still are kept here."""
        context: contextvars.Context = handle._context  # type: ignore[attr-defined]
        stopped = self._stopped.get(id(context.get(current_host)))
        if stopped is not None:
            stopped[id(handle)] = handle
            return True
        crashed: bool = self._is_crashed(handle)
        return crashed


class _Connection(asyncio.Protocol):
    """The server's end of a connection."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = _Socket(self._sim, transport)

    def data_received(self, data: bytes) -> None:
        self._socket.sendall(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._sim.over:
            return
        # A server may learn late that a connection is dead. Until then it serves it.
        late = error is not None and self._sim.draw(3) == 0
        asyncio.get_running_loop().call_later(self._sim.seconds(8) if late else 0, self._socket.end)


class _Socket(AsyncFakeSocket):
    """fakeredis, as it is for one connection; its replies go to a transport.

    Commands that block are served as by Redis: after each command, those that have waited longest first. (fakeredis
    answers BLMOVE with nothing as soon as anything changes, and serves in any order.)
    """

    def __init__(self, sim: Sim, transport: Any) -> None:
        super().__init__(sim.store, 0, client_class=redis.asyncio.Redis, client_info={"resp": 2})
        self._sim = sim
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """The connection was lost: what it waits for, it waits for no more."""
        self._unblock()
        self.close()

    def put_response(self, msg: Any) -> None:
        self._transport.write(_encoded(msg))

    def _decode_result(self, result: Any) -> Any:
        return result

    def _process_command(self, fields: list[bytes]) -> None:
        name = fields[0].upper()
        if name not in {b"BLMOVE", b"BRPOP"}:
            before = self._produced()
            super()._process_command(fields)
            self._check_bounds(before)
        else:
            key, blocked = fields[1], self._sim.blocked
            move = [b"LMOVE", *fields[1:-1]] if name == b"BLMOVE" else [b"RPOP", key]
            if self._length(key):
                super()._process_command(move)
            else:
                blocked.append((self, key, move))
                self.pause()
                if seconds := float(fields[-1]):
                    self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)
        self._sim.serve_blocked()

    def _get_server_runtime(self, server: Any) -> Any:
        """All worlds share one Lua, which compiles each script once: that halves the time of a run."""
        if not _lua:
            compiled = _Compiled(super()._get_server_runtime(server))
            _lua.update({name: value for name, value in vars(server).items() if name.startswith("_lua_")})
            _lua["_lua_runtime"] = compiled
        vars(server).update(_lua)
        return server._lua_runtime

    def serve(self, move: list[bytes]) -> None:
        """There is what this connection waits for."""
        self._unblock()
        super()._process_command(move)
        asyncio.get_running_loop().call_soon(self.resume)  # the commands that came meanwhile

    def has(self, key: bytes) -> bool:
        """Whether the list has elements."""
        return self._length(key) > 0

    def _give_up(self) -> None:
        self._unblock()
        self.put_response(None)
        self.resume()

    def _unblock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sim.blocked = [one for one in self._sim.blocked if one[0] is not self]

    def _check_bounds(self, before: dict[bytes, int]) -> None:
        """A put must leave no more messages than the bound allows."""
        for name, count in self._produced().items():
            if count > before.get(name, 0):
                bound, length = int(self._string(name + b":bound") or 0), self._length(name)
                if 0 < bound < length:
                    self._sim.broken = f"{length} messages wait after a put, the bound is {bound}"

    def _produced(self) -> dict[bytes, int]:
        """How many messages were put into each queue."""
        keys = (b"__pressure__:%b:stats:produced_messages" % name for name in self._sim.names)
        return {key[: key.index(b":stats:")]: int(self._string(key) or 0) for key in keys}

    def _string(self, key: bytes) -> bytes:
        found = self._db.get(key)
        return b"" if found is None else found.value

    def _length(self, key: bytes) -> int:
        found = self._db.get(key)
        return 0 if found is None else len(found.value)


_lua: dict[str, Any] = {}
"""What fakeredis notes about its Lua on a server."""


class _Compiled:
    """A Lua runtime that compiles each script once."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._scripts: dict[Any, Callable[[], Any]] = {"collectgarbage()": lambda: None}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, script: Any) -> Any:
        """Run a script."""
        if script not in self._scripts:
            self._scripts[script] = self._runtime.compile(script)
        return self._scripts[script]()


def _encoded(reply: Any) -> bytes:
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, SimpleString):
        return b"+%b\r\n" % reply.value
    if isinstance(reply, SimpleError):
        return b"-%b\r\n" % reply.value.encode()
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    assert isinstance(reply, (list, tuple)), reply
    return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """Open a client. One whose very first connection breaks fails, and is begun again, as a supervisor would do it."""
    while True:
        client = Client(URL)
        try:
            await client.__aenter__()
            break
        except ServerUnavailableError:
            await client.aclose()
    async with client:
        yield client


def thread_of(name: str) -> str:
    """Return the host of a process's lease thread."""
    return f"{name}'s thread"


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Have the clock of leases and the lease threads be those of the simulated world."""
    homes: dict[renewer.Renewer, contextvars.Context] = {}

    def start(thread: Any) -> None:
        host = current_host.get()
        loop = asyncio.get_running_loop()
        homes[thread._renewer] = contextvars.copy_context()
        elsewhere = contextvars.copy_context()

        async def work() -> None:
            try:
                await thread._renew()
            finally:
                thread._renewer.call_home(thread.ended.set)

        def begin() -> None:
            current_host.set(host._world.host(thread_of(host.name)))  # type: ignore[union-attr]
            loop.create_task(work(), name=thread_of(host.name))  # type: ignore[union-attr] # noqa: RUF006

        elsewhere.run(begin)

    def call_home(self: renewer.Renewer, function: Callable[[], object]) -> None:
        if self.home is not None:
            self.home.call_soon_threadsafe(function, context=homes[self].copy() if self in homes else None)

    checks = scripting_mixin._check_for_lua_globals
    scripting_mixin._check_for_lua_globals = lambda *_: None  # our scripts set none, and it takes long
    clock, before = since_boot.__reduce__()[2], (renewer._Thread.start, renewer.Renewer.call_home)  # type: ignore[misc]
    renewer._Thread.start, renewer.Renewer.call_home = start, call_home  # type: ignore[method-assign,assignment]
    since_boot.__setstate__((lambda: time.monotonic(), (), {}, {}))  # type: ignore[attr-defined] # noqa: PLW0108
    try:
        yield
    finally:
        scripting_mixin._check_for_lua_globals = checks
        renewer._Thread.start, renewer.Renewer.call_home = before  # type: ignore[method-assign]
        since_boot.__setstate__(clock)  # type: ignore[attr-defined]


def run(work: Callable[[Sim], Coroutine[Any, Any, Any]], seed: int) -> dict[str, int]:
    """Run some work in a world of its own, and return how often each fault came.

    Raises:
        AssertionError: Something is wrong; `work` says what.
    """
    faults: dict[str, int] = {}

    async def main(world: simloom.World) -> None:
        sim = Sim(world)
        await sim.start()
        try:
            async with asyncio.timeout(END):
                await work(sim)
            assert not sim.broken, sim.broken
            complaints = world._loop.unhandled_exceptions
            assert not complaints, complaints
            faults.update(sim.faults)
        finally:
            sim.end()

    with simulated():
        # Crashed processes are cancelled after the end: what they complain about then is of no interest.
        simloom.run(main, seed=seed, virtual_time=True, seed_randomness=True, gc_interval=0, on_unhandled="record")
    return faults
