"""Several servers that belong together: a primary with replicas, under Sentinel, and a cluster.

Each is a context manager that blocks; everything it does (`promote`, `failover`, `migrate`, …) blocks too and returns
when it has come about. In a coroutine: `await asyncio.to_thread(pair.promote)`. What the machine lacks skips the test.

    with replicated("valkey", lag=0.04) as pair:        # pair.url always leads to the primary
        pair.promote()                                  # SIGKILL; what the replica has not heard of is lost
    with sentinel("redis", sentinels=3) as watched:     # watched.url: redis+sentinel://…; watched.sentinels
        watched.failover()                              # SIGKILL; the old primary comes back as a replica
    with cluster("valkey", nodes=3) as nodes:           # nodes.url: redis+cluster://…; nodes.addresses
        nodes.migrate(nodes.slot("{jobs}"), to=1)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest
import redis
from redis.crc import key_slot

from apressure.embedded import EmbeddedServer
from tests.relay import Relay, relay
from tests.servers import CannotRun, admin, binary_of

PATIENCE: Final = 30.0
"""Seconds after which something that should have come about will not."""

SLOTS: Final = 16384
_HOST: Final = "127.0.0.1"

_QUICK: Final[dict[str, Any]] = {
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": 0,  # five seconds, otherwise
    "repl-ping-replica-period": 1,
}


class Group:
    """Servers that are started together, killed one by one, and stopped at the end."""

    def __init__(self, kind: str) -> None:
        try:
            self._binary = binary_of(kind)
        except CannotRun as missing:
            pytest.skip(str(missing))
        self.kind = kind
        self.servers: list[EmbeddedServer] = []
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="apressure-")))

    @property
    def software(self) -> str:
        """As `EmbeddedServer.software`."""
        return self.servers[0].software

    def start(self, **arguments: Any) -> EmbeddedServer:
        """Start a server that ends with the group."""
        server = EmbeddedServer(**{"binary": self._binary, "tcp": True, **arguments})
        server.start()
        self._stack.callback(_end, server)
        return server

    def kill(self, server: EmbeddedServer) -> None:
        """SIGKILL."""
        os.kill(server.pid, signal.SIGKILL)
        server.stop()

    def build(self) -> None:
        """Start everything, and wait until it works together."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _end(server: EmbeddedServer) -> None:
    if server.running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
            os.kill(server.pid, signal.SIGKILL)  # nobody needs its data
    server.stop()


def until(come_about: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until something has come about; a server that cannot be asked just now is asked again."""
    deadline = time.monotonic() + patience
    seen: object = None
    while time.monotonic() < deadline:
        try:
            if seen := come_about():
                return
        except redis.RedisError as error:
            seen = error
        time.sleep(0.02)
    raise AssertionError(f"not within {patience:g} seconds: {what} ({seen!r})")


def ask(server: EmbeddedServer, *command: object) -> Any:
    """Send one command to a server, and return what it answers as it comes (redis-py would make something of it)."""
    connection = redis.UnixDomainSocketConnection(path=os.fspath(server.socket_path), socket_timeout=10, protocol=2)
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


def information(server: EmbeddedServer) -> dict[str, Any]:
    """The section Replication of a server's INFO."""
    with admin(server) as client:
        found: dict[str, Any] = client.info("replication")
        return found


def _follows(replica: EmbeddedServer) -> bool:
    return information(replica).get("master_link_status") == "up"


class Pair(Group):
    """A primary and replicas that lag behind it.

    Attributes:
        servers: The primary, then its replicas.
    """

    def __init__(self, kind: str, replicas: int, lag: float, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {**_QUICK, **config}
        self._replicas = replicas
        self.lag = lag

    def build(self) -> None:
        self.servers = [self.start(config=self._config)]
        self._address = self._stack.enter_context(relay(self.primary.port))
        self._line = self._stack.enter_context(relay(self.primary.port))
        self.servers += [self._start_replica() for _ in range(self._replicas)]
        self.wait_for_replicas()

    def _start_replica(self) -> EmbeddedServer:
        return self.start(config={**self._config, "replicaof": (_HOST, self._line.port)})

    @property
    def primary(self) -> EmbeddedServer:
        """The server that takes writes."""
        return self.servers[0]

    @property
    def url(self) -> str:
        """An address that leads to the primary, whoever that is."""
        return f"redis://{_HOST}:{self._address.port}/0"

    @property
    def line(self) -> Relay:
        """What the replication passes."""
        return self._line

    def wait_for_replicas(self) -> None:
        """Wait until the replicas have the primary's data."""
        self._line.lag = 0.0
        for replica in self.servers[1:]:
            until(lambda replica=replica: _follows(replica), "the replica follows")  # type: ignore[misc]
        until(self._acknowledged, "the replicas have everything")
        self._line.lag = self.lag

    def _acknowledged(self) -> bool:
        seen = information(self.primary)
        offsets = [seen[f"slave{i}"]["offset"] for i in range(seen["connected_slaves"])]
        return len(offsets) == len(self.servers) - 1 and all(offset >= seen["master_repl_offset"] for offset in offsets)

    def promote(self, rejoin: bool = True) -> None:
        """Kill the primary; its first replica takes its place and its address. Writes that were on the line are lost.

        Args:
            rejoin: The old primary comes back as a replica of the new one, with none of its own data.
        """
        self._line.cut()
        old = self.servers.pop(0)
        self.kill(old)
        self._line.cut()
        ask(self.primary, "REPLICAOF", "NO", "ONE")
        self._address.target = self._line.target = self.primary.port
        self._address.cut()
        self._line.cut()  # further replicas come again, and find the new primary
        if rejoin:
            self.servers.append(self._start_replica())
            self.wait_for_replicas()


class Watched(Group):
    """A primary and replicas under Sentinel.

    Attributes:
        service: What Sentinel calls them.
        sentinels: The addresses (host, port) of the sentinels.
    """

    service = "queues"

    def __init__(self, kind: str, sentinels: int, replicas: int, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {**_QUICK, **config}
        self._replicas = replicas
        self._sentinels = sentinels

    def build(self) -> None:
        self.servers = [self.start(config=self._config)]
        self.servers += [self._start_replica() for _ in range(self._replicas)]
        for replica in self.servers[1:]:
            until(lambda replica=replica: _follows(replica), "the replica follows")  # type: ignore[misc]
        # The name makes it a sentinel: an embedded server takes no arguments.
        program = self._folder / f"{self.kind}-sentinel"
        program.symlink_to(self._binary)
        self.guards = [self.start(binary=program) for _ in range(self._sentinels)]
        self.sentinels = [(_HOST, guard.port) for guard in self.guards]
        for guard in self.guards:
            quick = _hurry(guard)
            ask(guard, "SENTINEL", "MONITOR", self.service, _HOST, self.primary.port, self._sentinels // 2 + 1)
            # Where the first ping comes after a second, a server must not be given up before.
            for name, value in (("down-after-milliseconds", 500 if quick else 3000), ("failover-timeout", 2000)):
                ask(guard, "SENTINEL", "SET", self.service, name, value)
        self.wait_for_sentinels()

    @property
    def primary(self) -> EmbeddedServer:
        """The server that takes writes, or that did so until it was killed."""
        return self.servers[0]

    @property
    def url(self) -> str:
        """The sentinels' addresses, for apressure."""
        return f"redis+sentinel://{','.join(f'{host}:{port}' for host, port in self.sentinels)}/{self.service}/0"

    def _start_replica(self, port: int | None = None) -> EmbeddedServer:
        return self.start(port=port, config={**self._config, "replicaof": (_HOST, self.primary.port)})

    def seen_by(self, guard: EmbeddedServer) -> dict[str, str]:
        """What a sentinel knows of the primary."""
        return _pairs(ask(guard, "SENTINEL", "MASTER", self.service))

    def wait_for_sentinels(self) -> None:
        """Wait until every sentinel knows everybody, so that a failover can begin."""

        def ready() -> bool:
            for guard in self.guards:
                seen = self.seen_by(guard)
                replicas = [_pairs(one) for one in ask(guard, "SENTINEL", "SLAVES", self.service)]
                if (
                    seen["num-other-sentinels"] != str(len(self.guards) - 1)
                    or seen["flags"] != "master"
                    or len(replicas) != len(self.servers) - 1
                    or any(one["flags"] != "slave" or one["master-link-status"] != "ok" for one in replicas)
                ):
                    return False
            return True

        until(ready, "the sentinels know everybody")

    def wait_for_new_primary(self, old: EmbeddedServer) -> None:
        """Wait until all sentinels agree on another primary than the old one, and it takes writes."""

        def changed() -> bool:
            ports = {self.seen_by(guard)["port"] for guard in self.guards}
            if len(ports) != 1 or ports == {str(old.port)}:
                return False
            (server,) = (server for server in self.servers if str(server.port) in ports)
            if information(server)["role"] != "master":
                return False
            self.servers.remove(server)
            self.servers.insert(0, server)
            return True

        until(changed, "the sentinels have a new primary")

    def failover(self, rejoin: bool = True) -> None:
        """Kill the primary and wait for the next one.

        Args:
            rejoin: The old primary comes back at its address, as a replica with none of its own data. (One that came
                back as a primary, as happens where only a process manager restarts it, would take writes until the
                sentinels see to it.)
        """
        old = self.primary
        self.kill(old)
        self.wait_for_new_primary(old)
        self.servers.remove(old)
        if rejoin:
            replica = self._start_replica(old.port)
            self.servers.append(replica)
            until(lambda: _follows(replica), "the old primary follows")
            self.wait_for_sentinels()

    def switch(self) -> None:
        """SENTINEL FAILOVER: nobody dies, the old primary becomes a replica while clients are connected to it."""
        old = self.primary
        until(lambda: ask(self.guards[0], "SENTINEL", "FAILOVER", self.service), "a failover that Sentinel agrees to")
        self.wait_for_new_primary(old)
        until(lambda: _follows(old), "the old primary follows")
        self.wait_for_sentinels()


def _pairs(words: list[bytes]) -> dict[str, str]:
    return dict(zip(*2 * [iter(word.decode() for word in words)], strict=True))


def _hurry(guard: EmbeddedServer) -> bool:
    """Make a sentinel look oftener than it does by itself; Redis 6.2 cannot."""
    periods = {"info": 300, "ping": 100, "publish": 300, "ask": 200}
    try:
        for name, value in periods.items():
            ask(guard, "SENTINEL", "DEBUG", f"{name}-period", value)
    except redis.ResponseError:
        return False
    return True


class Nodes(Group):
    """A cluster: nodes that share the slots evenly, each with replicas.

    Attributes:
        servers: The first primaries, then all replicas.
    """

    def __init__(self, kind: str, nodes: int, replicas: int, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {
            **_QUICK,
            "appendonly": False,
            "cluster-enabled": True,
            "cluster-node-timeout": 1000,
            "cluster-require-full-coverage": False,
            "cluster-replica-validity-factor": 0,
            **config,
        }
        self._nodes = nodes
        self._replicas = replicas

    def build(self) -> None:
        nodes = self._nodes
        # A directory of its own: there it keeps who it is in the cluster.
        self.servers = [
            self.start(directory=self._folder / str(number), port=_cluster_port(), config=self._config)
            for number in range(nodes * (1 + self._replicas))
        ]
        self.ids = [ask(server, "CLUSTER", "MYID").decode() for server in self.servers]
        self.owners = [number * nodes // SLOTS for number in range(SLOTS)]
        """Which server has a slot, by its index."""
        for number, server in enumerate(self.servers):
            if number < nodes:
                mine = [slot for slot in range(SLOTS) if self.owners[slot] == number]
                ask(server, "CLUSTER", "ADDSLOTS", *mine)
            ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            ask(self.servers[0], "CLUSTER", "MEET", _HOST, server.port)
        until(self._met, "the nodes know each other")
        self.followers: dict[int, list[int]] = {number: [] for number in range(nodes)}
        """The replicas of each primary, by their indices."""
        for number in range(nodes, len(self.servers)):
            primary = (number - nodes) % nodes
            until(lambda n=number, p=primary: self._replicate(n, p), "a node becomes a replica")  # type: ignore[misc]
            self.followers[primary].append(number)
        for number in range(nodes, len(self.servers)):
            until(lambda n=number: _follows(self.servers[n]), "the replica follows")  # type: ignore[misc]
        self.wait()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every node."""
        return [(_HOST, server.port) for server in self.servers]

    @property
    def url(self) -> str:
        """The nodes' addresses, for apressure."""
        return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in self.addresses)}"

    def slot(self, key: str | bytes) -> int:
        """The slot of a key."""
        return int(key_slot(key.encode() if isinstance(key, str) else key))

    def owner(self, key: str | bytes) -> EmbeddedServer:
        """The server that has a key's slot."""
        return self.servers[self.owners[self.slot(key)]]

    def _running(self) -> list[EmbeddedServer]:
        return [server for server in self.servers if server.running]

    def _met(self) -> bool:
        for server in self.servers:
            known = ask(server, "CLUSTER", "NODES")
            if len(known.splitlines()) != len(self.servers) or b"handshake" in known:
                return False
        return True

    def _replicate(self, number: int, primary: int) -> bool:
        return ask(self.servers[number], "CLUSTER", "REPLICATE", self.ids[primary]) == b"OK"

    def _view(self, server: EmbeddedServer) -> list[int]:
        """Which port has each slot, as a server sees it."""
        ports = [0] * SLOTS
        for first, last, node, *_ in ask(server, "CLUSTER", "SLOTS"):
            ports[first : last + 1] = [int(node[1])] * (last + 1 - first)
        return ports

    def wait(self) -> None:
        """Wait until all nodes that run see the cluster as it is, and nothing is down."""
        wanted = [self.servers[owner].port for owner in self.owners]

        def agreed() -> bool:
            for server in self._running():
                if b"cluster_state:ok" not in ask(server, "CLUSTER", "INFO") or self._view(server) != wanted:
                    return False
            return True

        until(agreed, "the nodes agree")

    def begin_migration(self, slot: int, to: int) -> None:
        """The first step of a migration: from now on the old node answers ASK for keys that it does not have."""
        source = self.owners[slot]
        ask(self.servers[to], "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        ask(self.servers[source], "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[to])

    def move_keys(self, slot: int, to: int, most: int | None = None) -> int:
        """The second step: move keys one by one, so that steps find some here and some there (TRYAGAIN).

        Args:
            slot: The slot.
            to: The index of the new owner.
            most: How many keys; None moves all.

        Returns:
            How many were moved.
        """
        moved = 0
        source, target = self.servers[self.owners[slot]], self.servers[to]
        while most is None or moved < most:
            keys = ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1)
            if not keys:
                break
            ask(source, "MIGRATE", _HOST, target.port, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_migration(self, slot: int, to: int) -> None:
        """The last step: everybody learns of the new owner. Who is blocked at the old one is sent away (MOVED)."""
        source = self.owners[slot]
        for number in [to, source, *set(range(len(self.servers))) - {to, source}]:
            if self.servers[number].running and not self._is_replica(number):
                ask(self.servers[number], "CLUSTER", "SETSLOT", slot, "NODE", self.ids[to])
        self.owners[slot] = to
        self.wait()

    def _is_replica(self, number: int) -> bool:
        return any(number in followers for followers in self.followers.values())

    def migrate(self, slot: int, to: int) -> int:
        """Move a slot with its keys to another primary. Returns how many keys were moved."""
        self.begin_migration(slot, to)
        moved = 0
        while True:
            # A step may make a key at the old node as long as that is the owner and has one of the step's keys.
            moved += self.move_keys(slot, to)
            try:
                self.end_migration(slot, to)
                return moved
            except redis.ResponseError as error:
                if "keys" not in str(error).lower():
                    raise

    def fail(self, number: int, rejoin: bool = True) -> int:
        """Kill a primary that has a replica, and wait until that has taken over.

        Args:
            number: The primary's index.
            rejoin: It comes back as a replica of the new one.

        Returns:
            The index of the new primary.
        """
        self.kill(self.servers[number])
        candidates = self.followers.pop(number)
        assert candidates, f"node {number} has no replica"
        promoted: list[int] = []

        def taken_over() -> bool:
            promoted[:] = [one for one in candidates if information(self.servers[one])["role"] == "master"]
            return bool(promoted)

        until(taken_over, "a replica takes over")
        (new,) = promoted
        self.followers[new] = [one for one in candidates if one != new]
        self.owners = [new if owner == number else owner for owner in self.owners]
        if rejoin:
            self.servers[number].start()
            until(lambda: _follows(self.servers[number]), "the old primary follows")
            self.followers[new].append(number)
        self.wait()
        return new


def _cluster_port() -> int:
    """A free port whose cluster port (10000 higher) is free too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind((_HOST, 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                two.bind((_HOST, port + 10000))
                return port


def replicated(kind: str, replicas: int = 1, lag: float = 0.0, **config: Any) -> Pair:
    """A primary and replicas that hear of everything `lag` seconds late.

    Args:
        kind: `"valkey"` or `"redis"`.
        replicas: How many.
        lag: Seconds; the replicas' acknowledgements (WAIT) are not late.
        **config: Directives for all servers, with `_` for `-`.
    """
    return Pair(kind, replicas, lag, _directives(config))


def sentinel(kind: str, sentinels: int = 1, replicas: int = 1, **config: Any) -> Watched:
    """A primary and replicas under Sentinel, which finds a dead primary after half a second.

    Args:
        kind: `"valkey"` or `"redis"`.
        sentinels: 1 or 3; one alone decides alone.
        replicas: How many.
        **config: Directives for primary and replicas, with `_` for `-`.
    """
    return Watched(kind, sentinels, replicas, _directives(config))


def cluster(kind: str, nodes: int = 3, replicas: int = 0, **config: Any) -> Nodes:
    """A cluster that has converged.

    Args:
        kind: `"valkey"` or `"redis"`.
        nodes: How many primaries.
        replicas: How many replicas each of them has.
        **config: Directives for all nodes, with `_` for `-`.
    """
    return Nodes(kind, nodes, replicas, _directives(config))


def _directives(config: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in config.items()}
