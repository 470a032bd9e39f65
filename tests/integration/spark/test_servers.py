"""Spark's steps under Sentinel and in a cluster: they follow the queue wherever it goes, and count everything once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from apressure.spark import sealed_batches
from apressure.spark.engine.sink_steps import SinkSteps
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import QueueSteps, find_queues, measure_all
from tests.integration.spark.support import GROUP, connect
from tests.servers import SERVERS, admin
from tests.topologies import Nodes, Watched, cluster, sentinel

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")


@pytest.fixture(scope="module", params=SERVERS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with cluster(request.param, nodes=3) as nodes:
        yield nodes


@pytest.fixture(scope="module", params=SERVERS)
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with sentinel(request.param) as watched:
        yield watched


def steps_of(url: str, name: str) -> SourceSteps:
    return SourceSteps(connect(url), name, GROUP)


def push(steps: SourceSteps, key: bytes, messages: list[bytes], before: int) -> None:
    """Push as a task does: if the reply is lost, the length tells whether the messages arrived."""
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


def write_and_read(steps: SourceSteps, rounds: int) -> list[bytes]:
    """Write batches into a queue, read them from it, and return what was read."""
    epoch, _, done = steps.begin_epoch()
    sink = SinkSteps(steps.server, steps.name)
    found: list[bytes] = []
    for number in range(rounds):
        messages = [b"%d %d" % (number, place) for place in range(50)]
        push(steps, steps.keys.part("w", f"part{number}"), messages[:20], 0)
        push(steps, steps.keys.part("w", f"part{number}"), messages[20:], 20)
        todo = sink.choose_parts("w", number, 0, [(f"part{number}", 50, sum(map(len, messages)))])
        while todo:
            answer: Any = steps.run_when_ready(
                lambda claimed, number=number, todo=todo: sink.put_part("w", number, todo, True, claimed), 10
            )
            assert isinstance(answer, str)
            todo = answer
        while True:
            sealed = steps.run_when_ready(lambda claimed, done=done: steps.seal(epoch, done, 30, claimed=claimed), 10)
            if sealed == "empty":
                break
            assert type(sealed) is int
            done = sealed
            ((_, rows),) = steps.batch_rows(epoch, done, done)
            key = steps.batch(done)
            length, batch = steps.server.together((b"LLEN", key), (b"LRANGE", key, 0, -1))
            assert length == rows
            found += batch[::-1]
            steps.commit(epoch, done, done)
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
        assert sealed_batches.uncommitted(steps.server.settings, name) == []
        assert steps.close() == 1
        steps.server.close()
    assert find_queues(steps.server, "{orders:*}") == names


def test_one_connection_to_each_node_of_a_cluster(nodes: Nodes) -> None:
    server = connect(nodes.url)
    queues = [QueueSteps(server, f"{{one:{number}}}") for number in range(20)]
    commands = [(b"LLEN", queue.keys.queue.messages) for queue in queues]

    def connections() -> int:
        found = 0
        for node in nodes.servers:
            with admin(node) as db:  # which is connected, too
                clients = db.client_list(_type="normal")
                found += sum(one["cmd"] != "restore-asking" for one in clients) - 1  # of a node that migrates
        return found

    def become(count: int) -> None:
        deadline = time.monotonic() + 10
        while connections() != count:  # the servers notice a little later that one was closed
            assert time.monotonic() < deadline
            time.sleep(0.01)

    before = connections()
    for queue in queues:
        queue.create(0)
    become(before + 3)
    for _ in range(3):  # one of them moves: the others go on where they are
        slot = nodes.slot(queues[0].name)
        nodes.migrate(slot, to=(nodes.owners[slot] + 1) % 3)
        assert measure_all(server, queues, skip_missing=False) == {queue.name: (0, 0, False) for queue in queues}
        assert server.ask_all(commands) == [0] * 20
    become(before + 3)
    server.close()
    become(before)


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
    push(steps, steps.keys.part("x", "part"), [b"a", b"b"], 0)  # over the connection to the new replica
    assert steps.server.ask(b"LLEN", steps.keys.part("x", "part")) == 2
    assert steps.measure() == (100, 0, False)
    watched.switch()
    assert steps.measure() == (100, 0, False)
    steps.server.close()


def test_a_name_that_a_cluster_would_spread_is_refused(nodes: Nodes) -> None:
    with pytest.raises(ValueError, match=r"put .* its name into braces"):
        steps_of(nodes.url, "jobs")
