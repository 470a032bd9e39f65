"""The connection of code that is not asyncio, when servers go and come back."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from apressure import AuthenticationError, QueueInUseError, ServerError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from apressure.spark.engine.steps import QueueSteps
from tests.integration.spark.support import connect, connected
from tests.servers import admin
from tests.topologies import cluster

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_a_server_that_comes_back_is_used_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    with connected(server.url, retryTimeout="10") as steps:
        with admin(server) as plain:
            plain.client_kill_filter(_type="normal", skipme=True)
            plain.script_flush()
        assert steps.measure() == (0, 0, False)


def test_a_push_without_a_reply_is_not_sent_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    blocking = connect(server.url, responseTimeout="0.5")
    blocking.ask(b"PING")
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ConnectionError):
        blocking.push_once(b"x", 1, b"$1\r\ny\r\n", 60_000)
    os.kill(server.pid, signal.SIGCONT)
    assert blocking.ask(b"LLEN", b"x") == 1
    blocking.close()


def test_a_replica_that_becomes_the_primary_is_waited_for(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    blocking = connect(server.url, retryTimeout="10")
    with admin(server) as plain:
        plain.replicaof("127.0.0.1", 1)
        timer = threading.Timer(0.5, plain.replicaof, ("NO", "ONE"))
        timer.start()
        blocking.ask(b"SET", b"x", b"y")  # the first write, too
        timer.join()
    blocking.close()


def test_a_client_that_is_dropped_leaves_nothing(make_server: Callable[..., EmbeddedServer]) -> None:
    server, others = make_server(), {*threading.enumerate()}
    with admin(server) as plain:
        before = len(plain.client_list())
        blocking = connect(server.url)
        blocking.ask(b"PING")
        (thread,) = {*threading.enumerate()} - others
        assert len(plain.client_list()) == before + 1
        del blocking
        gc.collect()
        deadline = time.monotonic() + 10
        while thread.is_alive() or len(plain.client_list()) > before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_server_that_stays_away_is_an_error() -> None:
    server = connect("redis://127.0.0.1:1", retryTimeout="0.2")
    with pytest.raises(ServerUnavailableError, match=r"cannot reach the server at 127.0.0.1:1 .*again for 0.2 seconds"):
        QueueSteps(server, "jobs").measure()


def test_a_cluster_that_comes_back_is_used_again() -> None:
    with cluster("valkey", nodes=3, appendonly=True) as nodes:
        steps = QueueSteps(connect(nodes.url), "{q}")
        steps.create(0)
        for server in nodes.servers:
            nodes.kill(server)

        def come_back() -> None:
            time.sleep(0.5)
            for server in nodes.servers:
                server.start()

        thread = threading.Thread(target=come_back)
        thread.start()
        assert steps.measure() == (0, 0, False)
        thread.join()
        steps.server.close()


def test_an_address_without_a_cluster_is_an_error(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server(config={"requirepass": "hunter2"})
    port = server.url.rpartition(":")[2].partition("/")[0]
    for nodes, error, says in (
        ("127.0.0.1:1", ServerUnavailableError, r"cannot find the cluster of 127\.0\.0\.1:1: cannot reach"),
        (f"127.0.0.1:{port}", AuthenticationError, "give a password"),
        (f":hunter2@127.0.0.1:{port}", ServerError, "is not a node of a cluster"),
    ):
        with pytest.raises(error, match=says):
            QueueSteps(connect(f"redis+cluster://{nodes}", retryTimeout="0.2"), "{q}").measure()


def test_a_wait_is_shorter_than_the_response_timeout(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    with connected(server.url, responseTimeout="0.4", pollWait="0.1", retryTimeout="1") as steps:
        with admin(server) as plain:
            plain.lpush(steps.keys.queue.messages, "x")
            plain.delete(steps.keys.queue.free("consumer"))
        epoch, _, _ = steps.begin_epoch()
        with pytest.raises(QueueInUseError, match="consumer role of the queue 'jobs' is held by 'another client'"):
            steps.run_when_ready(lambda claimed: steps.seal(epoch, 0, 5, claimed=claimed), 2.5)
