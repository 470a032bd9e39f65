"""Spark's steps under Sentinel and in a cluster: they follow the queue wherever it goes, and count everything once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from apressure.connection.blocking import Blocking
from apressure.spark import flights
from apressure.spark.options import Options
from apressure.spark.steps import Steps, find
from tests.servers import SERVERS
from tests.topologies import Nodes, Watched, cluster, sentinel

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
GROUP = "g"


@pytest.fixture(scope="module", params=SERVERS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with cluster(request.param, nodes=3) as nodes:
        yield nodes


@pytest.fixture(scope="module", params=SERVERS)
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with sentinel(request.param) as watched:
        yield watched


def steps_of(url: str, name: str) -> Steps:
    return Steps(Blocking(Options.of({"url": url, "queue": name}).settings()), "__pressure__", name)


def push(steps: Steps, key: bytes, messages: list[bytes], before: int) -> None:
    """As a task writes: where the answer was lost, the length tells whether it came."""
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in messages)
    while True:
        try:
            assert steps.server.push_once(key, len(messages), packed, 60_000) == before + len(messages)
        except ConnectionError:
            if steps.server.ask(b"LLEN", key) == before:
                time.sleep(0.05)
                continue
            assert steps.server.ask(b"LLEN", key) == before + len(messages)
        return


def write_and_read(steps: Steps, rounds: int) -> list[bytes]:
    """Write batches into a queue, read them from it, and return what was read."""
    epoch, _, done = steps.adopt(GROUP)
    found: list[bytes] = []
    for number in range(rounds):
        messages = [b"%d %d" % (number, place) for place in range(50)]
        push(steps, steps.keys.part("w", f"part{number}"), messages[:20], 0)
        push(steps, steps.keys.part("w", f"part{number}"), messages[20:], 20)
        todo = steps.record("w", number, 0, [(f"part{number}", 50, sum(map(len, messages)))])
        while todo:
            answer: Any = steps.patiently(
                lambda held, number=number, todo=todo: steps.publish("w", number, todo, True, held), 10
            )
            assert isinstance(answer, str)
            todo = answer
        while True:
            sealed = steps.patiently(lambda held, done=done: steps.seal(GROUP, epoch, done, 30, held=held), 10)
            if sealed is None:
                break
            assert type(sealed) is int
            done = sealed
            ((_, rows),) = steps.slices(GROUP, epoch, done, done)
            key = steps.keys.batch(GROUP, done)
            length, batch = steps.server.together((b"LLEN", key), (b"LRANGE", key, 0, -1))
            assert length == rows
            found += batch[::-1]
            steps.commit(GROUP, epoch, done, done)
        steps.await_message(0.01)
        steps.await_room(0.01)
    return found


def expected(rounds: int) -> list[bytes]:
    return [b"%d %d" % (number, place) for number in range(rounds) for place in range(50)]


def test_queues_of_a_cluster(nodes: Nodes) -> None:
    names = [f"{{orders:{number}}}" for number in range(4)]
    assert len({nodes.owners[nodes.slot(name)] for name in names}) > 1
    for name in names:
        steps = steps_of(nodes.url, name)
        steps.create(0)
        assert write_and_read(steps, 2) == expected(2)
        assert flights.look(steps.server.settings, name) == []
        assert steps.close() == 1
        steps.server.close()
    assert find(steps.server, "__pressure__", "{orders:*}") == names


def test_a_slot_that_moves(nodes: Nodes) -> None:
    steps = steps_of(nodes.url, "{moving}")
    steps.create(0)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(write_and_read(steps, 60)), daemon=True)
    thread.start()
    for turn in range(4):
        time.sleep(0.3)
        slot = nodes.slot("{moving}")
        nodes.migrate(slot, to=(nodes.owners[slot] + 1 + turn % 2) % 3)
    thread.join(60)
    assert found == expected(60)


def test_a_primary_that_changes(watched: Watched) -> None:
    steps = steps_of(watched.url, "jobs")
    steps.create(0)
    assert write_and_read(steps, 2) == expected(2)
    watched.switch()
    push(steps, steps.keys.part("x", "part"), [b"a", b"b"], 0)  # over the connection to what is a replica now
    assert steps.server.ask(b"LLEN", steps.keys.part("x", "part")) == 2
    assert steps.measure() == (100, 0, False)
    watched.switch()
    assert steps.measure() == (100, 0, False)
    steps.server.close()


def test_a_name_that_a_cluster_would_spread_is_refused(nodes: Nodes) -> None:
    with pytest.raises(ValueError, match=r"put .* its name into braces"):
        steps_of(nodes.url, "jobs")
