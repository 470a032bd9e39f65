"""The server of a simulated world: fakeredis behind a socket, with a replica that is behind and may take over.

Connections break, and replies are lost. After each command, `state` looks at what the server holds.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from typing import Any, Protocol

import fakeredis
import redis.asyncio
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket import AsyncFakeSocket

from tests.simulation.state import State


class Dice(Protocol):
    """What follows from the seed."""

    def draw(self, bound: int) -> int:
        """Return a number from 0 to bound - 1."""

    def seconds(self, longest: float) -> float:
        """Return up to `longest` seconds."""


class Server:
    """The server, and what it holds.

    Args:
        dice: What follows from the seed.

    Attributes:
        state: Looks at the queues after each command.
        over: The run has ended.
        elections: How often a replica has taken over, or the server has started again. Connections to the server before
            it are dead.
        ahead: How many seconds the server's clock is ahead of the others.
        after_script: What happens as soon as the next script of a process has run, by the process.
    """

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.store = fakeredis.FakeServer()
        self.state = State(self.store.dbs[0], self.now)
        self.over = False
        self.elections = 0
        self.ahead = 0.0
        self.after_script: dict[str, Callable[[], None]] = {}
        self._blocked: list[_Socket] = []
        """The connections that wait for a list, the longest first."""
        self._replica: dict[bytes, Any] | None = None
        self._unconfirmed: list[_Socket] = []
        """The connections whose WAIT is not over."""

    def now(self) -> float:
        """What the server's clock shows."""
        return time.time() + self.ahead

    def lasting_keys(self) -> list[bytes]:
        """The keys that do not expire."""
        return [key for key, item in self.store.dbs[0]._dict.items() if item.expireat is None]

    def replicate(self, lag: float) -> None:
        """From now on there is a replica, which is up to `lag` seconds behind."""
        if self.over:
            return
        self._replica = copy.deepcopy(self.store.dbs[0]._dict)
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for one in unconfirmed:
            one.confirm(1)
        asyncio.get_running_loop().call_later(self.dice.seconds(lag), self.replicate, lag)

    def fail_over(self) -> None:
        """The server dies, and its replica takes over: what it has not heard of is lost. It knows no scripts."""
        assert self._replica is not None
        self.restart()
        database = self.store.dbs[0]
        database._dict.clear()
        for key, item in copy.deepcopy(self._replica).items():
            database[key] = item
        self.state.taken_over()

    def restart(self) -> None:
        """The server ends, and starts again with what it held. It knows no scripts."""
        self.elections += 1
        self._blocked.clear()
        self._unconfirmed.clear()
        self.store.script_cache.clear()

    def block(self, socket: _Socket) -> None:
        """A connection waits for a list."""
        self._blocked.append(socket)

    def unblock(self, socket: _Socket) -> None:
        """A connection waits no more."""
        self._blocked = [one for one in self._blocked if one is not socket]
        self._unconfirmed = [one for one in self._unconfirmed if one is not socket]

    def serve_blocked(self) -> None:
        """Serve connections that wait, as long as there is something for one of them."""
        while (found := next((one for one in self._blocked if one.has_wanted()), None)) is not None:
            found.serve()

    def wait_for_replica(self, socket: _Socket) -> None:
        """A connection waits until the replica has everything."""
        self._unconfirmed.append(socket)

    def connection(self) -> asyncio.Protocol:
        """Return the server's end of a new connection."""
        return _Connection(self)


class _Connection(asyncio.Protocol):
    """The server's end of a connection."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._socket = _Socket(self._server, transport)

    def data_received(self, data: bytes) -> None:
        self._socket.sendall(data)
        waiting = self._server.after_script
        if waiting and b"EVAL" in data:
            waiting.pop(getattr(self._transport._peer.owner, "name", ""), lambda: None)()

    def connection_lost(self, error: Exception | None) -> None:
        if self._server.over:
            return
        loop, dice = asyncio.get_running_loop(), self._server.dice
        if error is None or dice.draw(3):
            loop.call_soon(self._socket.end)
            return
        # A server may learn late that a connection is dead. Until then it serves it. And what was on its way may come
        # after everything that its sender has sent since, on another connection.
        last = 0.0
        for item in (*self._transport._inbox, *self._transport._pending):
            if isinstance(item, bytes):
                last += dice.seconds(2)
                loop.call_later(last, self._arrives_late, item)
        loop.call_later(last + 0.001 + dice.seconds(8), self._socket.end)

    def _arrives_late(self, data: bytes) -> None:
        if not self._server.over:
            self._socket.sendall(data)


class _Socket(AsyncFakeSocket):
    """fakeredis, as it is for one connection; its replies go to a transport.

    Commands that block are served as by Redis: after each command, those that have waited longest first. (fakeredis
    answers BLMOVE with nothing as soon as anything changes, and serves in any order.)
    """

    def __init__(self, server: Server, transport: Any) -> None:
        super().__init__(server.store, 0, client_class=redis.asyncio.Redis, client_info={"resp": 2})
        self._server_of = server
        self._elections = server.elections
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: list[bytes] = []
        """The blocking command that was the latest."""
        self._popped_from: bytes | None = None
        """The list of the BRPOP whose answer comes next: the answer names it."""

    def end(self) -> None:
        """The connection was lost: what it waits for, it waits for no more."""
        self._unblock()
        self.close()

    def put_response(self, msg: Any) -> None:
        if self._popped_from is not None:
            msg, self._popped_from = [self._popped_from, msg], None
        self._transport.write(_encoded(msg))

    def _decode_result(self, result: Any) -> Any:
        return result

    def _process_command(self, fields: list[bytes]) -> None:
        server = self._server_of
        if self._elections != server.elections:
            return  # the server of this connection is dead
        name = fields[0].upper()
        if name == b"WAIT":
            if fields[1] == b"0":
                self.put_response(0)
            else:
                self._wait(lambda: server.wait_for_replica(self), float(fields[2]) / 1000, 0)
        elif name not in {b"BLMOVE", b"BRPOP"}:
            super()._process_command(fields)
        else:
            self._wanted = fields
            if self.has_wanted():
                self._take()
            else:
                self._wait(lambda: server.block(self), float(fields[-1]), None)
        server.serve_blocked()
        server.state.look()

    def time(self) -> list[bytes]:
        """The command TIME."""
        return [b"%d" % part for part in divmod(round(self._server_of.now() * 1e6), 1_000_000)]

    def _get_server_runtime(self, server: Any) -> Any:
        """All worlds share one Lua, which compiles each script once: that halves the time of a run."""
        if not _lua:
            compiled = _Compiled(super()._get_server_runtime(server))
            _lua.update({name: value for name, value in vars(server).items() if name.startswith("_lua_")})
            _lua["_lua_runtime"] = compiled
        vars(server).update(_lua)
        return server._lua_runtime

    def serve(self) -> None:
        """There is what this connection waits for."""
        self._unblock()
        self._take()
        asyncio.get_running_loop().call_soon(self.resume)  # the commands that came meanwhile

    def confirm(self, replicas: int) -> None:
        """So many replicas have what this connection waits for."""
        self._unblock()
        self.put_response(replicas)
        asyncio.get_running_loop().call_soon(self.resume)

    def has_wanted(self) -> bool:
        """Whether a list that this connection waits for has elements."""
        return any(map(self._has, self._lists()))

    def _lists(self) -> list[bytes]:
        return self._wanted[1:-1] if self._wanted[0].upper() == b"BRPOP" else self._wanted[1:2]

    def _has(self, key: bytes) -> bool:
        found = self._db.get(key)
        return found is not None and len(found.value) > 0

    def _take(self) -> None:
        key = next(filter(self._has, self._lists()))
        if self._wanted[0].upper() == b"BLMOVE":
            super()._process_command([b"LMOVE", *self._wanted[1:-1]])
        else:
            self._popped_from = key
            super()._process_command([b"RPOP", key])

    def _wait(self, begin: Callable[[], None], seconds: float, otherwise: int | None) -> None:
        begin()
        self.pause()
        if seconds:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up, otherwise)

    def _give_up(self, answer: int | None) -> None:
        self._unblock()
        self.put_response(answer)
        self.resume()

    def _unblock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server_of.unblock(self)


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
