"""Several servers that belong together: a primary with replicas, under Sentinel, and a cluster.

Each is a context manager that blocks; everything it does (`promote`, `failover`, `migrate`, …) blocks too and returns
when it has come about. In a coroutine: `await asyncio.to_thread(pair.promote)`. What the machine lacks skips the test.

    with replicated("valkey", lag=0.04) as pair:        # pair.url always leads to the primary
        pair.promote()                                  # SIGKILL; writes that the replica has not received are lost
    with sentinel("redis", sentinels=3) as watched:     # watched.url: redis+sentinel://…; watched.sentinels
        watched.failover()                              # SIGKILL; the old primary comes back as a replica
    with cluster("valkey", nodes=3) as nodes:           # nodes.url: redis+cluster://…; nodes.addresses
        nodes.migrate(nodes.slot("{jobs}"), to=1)
"""

from __future__ import annotations

from typing import Any

from tests.topologies.clusters import Nodes
from tests.topologies.group import Group, ask, follows, heard, information, must_be_empty, until
from tests.topologies.replicas import Pair
from tests.topologies.sentinels import Watched

__all__ = [
    "Group", "Nodes", "Pair", "Watched",
    "ask", "cluster", "follows", "heard", "information", "must_be_empty", "replicated", "sentinel", "until",
]  # fmt: skip


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
    """A primary and replicas under Sentinel, which finds a dead primary after a second.

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
