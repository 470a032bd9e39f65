"""A simulated world with one server, and processes that crash, stand still or block.

* A process is a host of simloom. Its lease thread is a host of its own, since it goes on while the event loop is
  blocked. A crash ends both, without any cleanup.
* A process that stands still (SIGSTOP, a suspended machine) runs nothing for a while, and then everything that came
  meanwhile. Time goes on for it. A process that blocks does the same, but its lease thread goes on.
* The server is in `server`: connections break, replies are lost, and a replica takes over that is behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

import simloom
from fakeredis.commands_mixins import scripting_mixin
from simloom._context import current_host

from apressure import Client, ServerUnavailableError
from apressure.connection import renewer
from apressure.core.leases.clock import since_boot
from tests.simulation.server import Server

URL: Final = "redis://server:6379"
END: Final = 600.0
"""Simulated seconds after which something is stuck."""


class Sim:
    """What a run has: the world, its server, and its processes.

    Args:
        world: Of simloom.

    Attributes:
        server: The server.
        faults: How often each fault has come.
        latency: The longest time, in seconds, that something is on its way.
    """

    def __init__(self, world: simloom.World) -> None:
        self.server = Server(self)
        self.faults: dict[str, int] = {}
        self.latency = 0.0
        self._world = world
        self._loop: Any = world._loop
        self._home = world.host("server")
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
            await asyncio.get_running_loop().create_server(self.server.connection, "server", 6379)

        await self._home.spawn(serve, name="server")

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
            self._world.net.reset_connections(host, self._home)

    def lose_reply(self, name: str) -> None:
        """Break all connections of a process as soon as its next script has run: the script is sent again."""
        self.server.after_script[name] = lambda: self.reset(name)

    async def stop(self, name: str, seconds: float, threads: bool = True) -> None:
        """Have a process stand still; without `threads` only its event loop, as if a handler blocked it."""
        self._note("processes stopped" if threads else "event loops blocked")
        hosts = [host for host in self._hosts(name, threads) if id(host) not in self._stopped and not host.crashed]
        for host in hosts:
            self._stopped[id(host)] = {}
        await asyncio.sleep(seconds)
        for host in hosts:
            self._go_on(host)

    def fail_over(self) -> None:
        """The server dies, and its replica takes over. All connections break."""
        self._note("failovers")
        self.server.fail_over()
        self._break_connections()

    def restart(self) -> None:
        """The server ends, and starts again with what it held. All connections break."""
        self._note("restarts")
        self.server.restart()
        self._break_connections()

    def _break_connections(self) -> None:
        for host in (None, *self._world.hosts):
            self._world.net.reset_connections(host, self._home)

    def set_clock(self, seconds: float) -> None:
        """Set the server's clock to so many seconds later, or before 0 earlier."""
        self._note("clocks set")
        self.server.ahead += seconds

    def raise_failures(self) -> None:
        """Raise what a process has raised."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def end(self) -> None:
        """Let everything go on, so that it can be cancelled."""
        self.server.over = True
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


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[Client]:
    """Open a client that outlasts a process that stands still.

    One whose very first connection breaks fails, and is begun again, as a supervisor would do it.
    """
    while True:
        client = Client(**{"url": URL, "retry_timeout": 60.0, **options})
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


Work = Callable[[Sim], Coroutine[Any, Any, Any]]
"""What happens in a world."""


def run(work: Work, seed: int) -> dict[str, int]:
    """Run some work in a world of its own, and return how often each fault came.

    Raises:
        AssertionError: Something is wrong; `work` says what.
    """
    faults: dict[str, int] = {}

    async def main(world: simloom.World) -> None:
        sim = Sim(world)
        await sim.start()
        try:
            try:
                async with asyncio.timeout(END):
                    await work(sim)
            except TimeoutError:
                sim.raise_failures()  # others may wait for what it left
                raise
            finally:
                assert not sim.server.state.wrong, sim.server.state.wrong
            complaints = world._loop.unhandled_exceptions
            assert not complaints, complaints
            faults.update(sim.faults)
        finally:
            sim.end()

    with simulated():
        # Crashed processes are cancelled after the end: what they complain about then is of no interest.
        simloom.run(main, seed=seed, virtual_time=True, seed_randomness=True, gc_interval=0, on_unhandled="record")
    return faults
