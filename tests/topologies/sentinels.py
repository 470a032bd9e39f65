"""A primary and replicas under Sentinel."""

from __future__ import annotations

from typing import Any, Final

import redis

from apressure.embedded import EmbeddedServer
from tests.topologies.group import HOST, PATIENCE, QUICK, Group, ask, follows, heard, information, until

TILT: Final = 30.0
"""Seconds for which a Sentinel that could not be hurried does nothing after the machine has stood still for two."""


class Watched(Group):
    """A primary and replicas under Sentinel.

    Attributes:
        service: What Sentinel calls them.
        sentinels: The addresses (host, port) of the sentinels.
    """

    service = "queues"

    def __init__(self, kind: str, sentinels: int, replicas: int, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {**QUICK, **config}
        self._replicas = replicas
        self._sentinels = sentinels

    def build(self) -> None:
        self.servers = [self.start(config=self._config)]
        self.servers += [self._start_replica() for _ in range(self._replicas)]
        for replica in self.servers[1:]:
            self._wait_for_replica(replica)
        self.wait_for_replicas()
        # The name makes it a sentinel: an embedded server takes no arguments.
        program = self._folder / f"{self.kind}-sentinel"
        program.symlink_to(self._binary)
        self.guards = [self.start(binary=program) for _ in range(self._sentinels)]
        self.sentinels = [(HOST, guard.port) for guard in self.guards]
        for guard in self.guards:
            quick = _hurry(guard)
            ask(guard, "SENTINEL", "MONITOR", self.service, HOST, self.primary.port, self._sentinels // 2 + 1)
            # Where the first ping comes after a second, a server must not be given up before.
            for name, value in (("down-after-milliseconds", 1000 if quick else 3000), ("failover-timeout", 2000)):
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
        # Before it has the data it must not be chosen: a busy machine may have the sentinels find a primary dead.
        config = {**self._config, "replicaof": (HOST, self.primary.port), "replica-priority": 0}
        return self.start(port=port, config=config)

    def wait_for_replicas(self) -> None:
        """Wait until the replicas have what the primary has now."""
        heard(self.primary, len(self.servers) - 1)

    def _wait_for_replica(self, replica: EmbeddedServer) -> None:
        until(lambda: follows(replica), "the replica follows")
        ask(replica, "CONFIG", "SET", "replica-priority", 100)

    def seen_by(self, guard: EmbeddedServer) -> dict[str, str]:
        """A sentinel's information about the primary."""
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
                    or any(
                        (one["flags"], one["master-link-status"], one["slave-priority"]) != ("slave", "ok", "100")
                        for one in replicas
                    )
                ):
                    return False
            return True

        until(ready, "the sentinels know everybody")

    def wait_for_new_primary(self, old: EmbeddedServer, patience: float = TILT + PATIENCE) -> None:
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

        until(changed, "the sentinels have a new primary", patience)

    def failover(self, rejoin: bool = True) -> None:
        """Kill the primary and wait for the next one.

        Args:
            rejoin: The old primary comes back at its address, as a replica with none of its own data. (One that came
                back as a primary, as happens where only a process manager restarts it, would take writes until the
                sentinels see to it.)
        """
        old = self.primary
        self.kill(old)
        try:
            self.wait_for_new_primary(old)
        except AssertionError:
            for guard in self.guards:
                print(guard.log_tail())
            raise
        self.servers.remove(old)
        if rejoin:
            replica = self._start_replica(old.port)
            self.servers.append(replica)
            self._wait_for_replica(replica)
            self.wait_for_replicas()
            self.wait_for_sentinels()

    def switch(self) -> None:
        """SENTINEL FAILOVER: no server dies; the old primary becomes a replica while clients are connected to it.

        What was written before is there after it.
        """
        self.wait_for_replicas()  # (Sentinel does not)
        old = self.primary
        for patience in (5.0, 5.0, TILT + PATIENCE):  # it may be given up: no replica that is good enough just now
            until(lambda: ask(self.guards[0], "SENTINEL", "FAILOVER", self.service), "Sentinel agrees to a failover")
            try:
                self.wait_for_new_primary(old, patience)
                break
            except AssertionError:
                if patience > TILT:
                    raise
        until(lambda: follows(old), "the old primary follows")
        self.wait_for_replicas()
        self.wait_for_sentinels()


def _pairs(words: list[bytes]) -> dict[str, str]:
    return dict(zip(*2 * [iter(word.decode() for word in words)], strict=True))


def _hurry(guard: EmbeddedServer) -> bool:
    """Make a sentinel look oftener than it does by itself; Redis 6.2 cannot."""
    # A sentinel's information about a replica expires after five pings, and is renewed once a second.
    # "tilt" is for how long it does nothing after the machine has stood still.
    periods = {"info": 300, "ping": 300, "publish": 300, "ask": 200, "tilt": 3000}
    try:
        for name, value in periods.items():
            ask(guard, "SENTINEL", "DEBUG", f"{name}-period", value)
    except redis.ResponseError:
        return False
    return True
