"""A cluster."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

import redis
from redis.crc import key_slot

from apressure.embedded import EmbeddedServer
from tests.topologies.group import HOST, QUICK, Group, ask, follows, heard, information, until

SLOTS: Final = 16384


class Nodes(Group):
    """A cluster: nodes that share the slots evenly, each with replicas.

    Attributes:
        servers: The first primaries, then all replicas.
    """

    def __init__(self, kind: str, nodes: int, replicas: int, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {
            **QUICK,
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
        # A directory of its own: it keeps its identity in the cluster there.
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
            ask(self.servers[0], "CLUSTER", "MEET", HOST, server.port)
        until(self._met, "the nodes know each other")
        self.followers: dict[int, list[int]] = {number: [] for number in range(nodes)}
        """The replicas of each primary, by their indices."""
        for number in range(nodes, len(self.servers)):
            primary = (number - nodes) % nodes
            until(lambda n=number, p=primary: self._replicate(n, p), "a node becomes a replica")  # type: ignore[misc]
            self.followers[primary].append(number)
        for number in range(nodes, len(self.servers)):
            until(lambda n=number: follows(self.servers[n]), "the replica follows")  # type: ignore[misc]
        self.wait_for_replicas()
        self.wait()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every node."""
        return [(HOST, server.port) for server in self.servers]

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

    def wait_for_replicas(self) -> None:
        """Wait until all replicas have received what their primaries have now."""
        for primary, replicas in self.followers.items():
            heard(self.servers[primary], len(replicas))

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
            ask(source, "MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_migration(self, slot: int, to: int) -> None:
        """The last step: all nodes learn of the new owner. The old one sends blocked clients away (MOVED)."""
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
            until(lambda: follows(self.servers[number]), "the old primary follows")
            self.followers[new].append(number)
            self.wait_for_replicas()
        self.wait()
        return new


def _cluster_port() -> int:
    """A free port whose cluster port (10000 higher) is free too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind((HOST, 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                two.bind((HOST, port + 10000))
                return port
