"""A primary and replicas that lag behind it."""

from __future__ import annotations

from typing import Any

from apressure.embedded import EmbeddedServer
from apressure.testing.proxy import Proxy
from tests.topologies.group import HOST, QUICK, Group, ask, follows, heard, until


class Pair(Group):
    """A primary and replicas that lag behind it.

    Attributes:
        servers: The primary, then its replicas.
    """

    def __init__(self, kind: str, replicas: int, lag: float, config: dict[str, Any]) -> None:
        super().__init__(kind)
        self._config = {**QUICK, **config}
        self._replicas = replicas
        self.lag = lag

    def build(self) -> None:
        self.servers = [self.start(config=self._config)]
        self._address = self._stack.enter_context(Proxy(self.primary.url))
        self._line = self._stack.enter_context(Proxy(self.primary.url))
        self.servers += [self._start_replica() for _ in range(self._replicas)]
        self.wait_for_replicas()

    def _start_replica(self) -> EmbeddedServer:
        return self.start(config={**self._config, "replicaof": (HOST, self._line.port)})

    @property
    def primary(self) -> EmbeddedServer:
        """The server that takes writes."""
        return self.servers[0]

    @property
    def url(self) -> str:
        """An address that leads to the current primary."""
        return self._address.url

    @property
    def line(self) -> Proxy:
        """The proxy that the replication uses."""
        return self._line

    def wait_for_replicas(self) -> None:
        """Wait until the replicas have the primary's data."""
        self._line.trouble.lag = 0.0
        for replica in self.servers[1:]:
            until(lambda replica=replica: follows(replica), "the replica follows")  # type: ignore[misc]
        heard(self.primary, len(self.servers) - 1)
        self._line.trouble.lag = self.lag

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
        self._address.target = self._line.target = self.primary.url
        self._address.cut()
        self._line.cut()  # further replicas come again, and find the new primary
        if rejoin:
            self.servers.append(self._start_replica())
            self.wait_for_replicas()
