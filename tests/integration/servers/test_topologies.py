"""Replicas, Sentinel and Cluster as the tests build them: they do what failover tests rely on."""

from __future__ import annotations

import pytest
import redis

from tests.servers import SERVERS
from tests.topologies import ask, cluster, information, replicated, sentinel

pytestmark = pytest.mark.parametrize("kind", SERVERS)


def test_a_replica_that_lags_takes_over(kind: str) -> None:
    with replicated(kind, lag=0.2) as pair:
        old = pair.primary.port
        with redis.Redis.from_url(pair.url) as client:
            client.set("heard", 1)
            assert client.wait(1, 5000) == 1
            client.set("lost", 1)
        pair.promote()
        assert pair.primary.port != old
        assert [information(server)["role"] for server in pair.servers] == ["master", "slave"]
        with redis.Redis.from_url(pair.url) as client:
            assert (client.get("heard"), client.get("lost")) == (b"1", None)
            client.set("later", 1)


def test_sentinel_finds_a_new_primary(kind: str) -> None:
    with sentinel(kind, sentinels=3) as watched:
        with redis.Redis.from_url(watched.primary.url) as client:
            client.set("key", 1)
            assert client.wait(1, 5000) == 1
        for change in (watched.failover, watched.switch):
            old = watched.primary.port
            change()
            found = redis.Sentinel(watched.sentinels).discover_master(watched.service)
            assert found == ("127.0.0.1", watched.primary.port)
            assert watched.primary.port != old
            with redis.Redis.from_url(watched.primary.url) as client:
                assert client.get("key") == b"1"
                client.set("later", 1)


def test_a_slot_moves(kind: str) -> None:
    with cluster(kind) as nodes:
        slot = nodes.slot("{jobs}")
        source = nodes.owners[slot]
        target = (source + 1) % 3
        for number in range(5):
            ask(nodes.servers[source], "SET", f"{{jobs}}{number}", number)
        nodes.begin_migration(slot, target)
        assert nodes.move_keys(slot, target, most=2) == 2
        with pytest.raises(redis.exceptions.TryAgainError):
            ask(nodes.servers[source], "MGET", *(f"{{jobs}}{number}" for number in range(5)))
        assert nodes.move_keys(slot, target) == 3
        nodes.end_migration(slot, target)
        with pytest.raises(redis.exceptions.MovedError):
            ask(nodes.servers[source], "GET", "{jobs}3")
        assert ask(nodes.owner("{jobs}"), "GET", "{jobs}3") == b"3"


def test_a_node_fails(kind: str) -> None:
    with cluster(kind, replicas=1) as nodes:
        key = "{jobs}"
        old = nodes.owners[nodes.slot(key)]
        ask(nodes.owner(key), "SET", key, 1)
        nodes.wait_for_replicas()
        new = nodes.fail(old)
        assert nodes.owners[nodes.slot(key)] == new != old
        assert ask(nodes.owner(key), "GET", key) == b"1"
