"""The connection of code that is not asyncio, when servers go and come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from apressure import AuthenticationError, ServerError, ServerUnavailableError
from apressure.connection.blocking import Blocking
from apressure.embedded import EmbeddedServer
from apressure.spark.options import Options
from apressure.spark.steps import Busy, Steps
from tests.servers import admin
from tests.topologies import cluster

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_a_server_that_comes_back_is_used_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    blocking = Blocking(Options.of({"url": server.url, "queue": "jobs", "retryTimeout": "10"}).settings())
    steps = Steps(blocking, "__pressure__", "jobs")
    steps.create(0)
    with admin(server) as plain:
        plain.client_kill_filter(_type="normal", skipme=True)
        plain.script_flush()
    assert steps.measure() == (0, 0, False)
    blocking.close()


def test_a_command_whose_answer_does_not_come_is_not_sent_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    options = Options.of({"url": server.url, "queue": "jobs", "responseTimeout": "0.5"})
    blocking = Blocking(options.settings())
    blocking.ask(b"PING")
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ConnectionError):
        blocking.push_once(b"x", 1, b"$1\r\ny\r\n", 60_000)
    os.kill(server.pid, signal.SIGCONT)
    assert blocking.ask(b"LLEN", b"x") == 1
    blocking.close()


def test_a_server_that_is_away_is_an_error_in_the_end() -> None:
    blocking = Blocking(Options.of({"url": "redis://127.0.0.1:1", "queue": "jobs", "retryTimeout": "0.2"}).settings())
    with pytest.raises(ServerUnavailableError, match=r"cannot reach 127.0.0.1:1 .*tried again for 0.2 seconds"):
        Steps(blocking, "__pressure__", "jobs").measure()


def test_a_cluster_that_comes_back_is_used_again() -> None:
    """redis-py has errors of another kind for clusters of which no node answers."""
    with cluster("valkey", nodes=3, appendonly=True) as nodes:
        steps = Steps(Blocking(Options.of({"url": nodes.url, "queue": "{q}"}).settings()), "__pressure__", "{q}")
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


def test_a_cluster_that_is_none_or_refuses(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server(config={"requirepass": "hunter2"})
    port = server.url.rpartition(":")[2].partition("/")[0]
    for nodes, error, says in (
        ("127.0.0.1:1", ServerUnavailableError, r"cannot reach the cluster of 127\.0\.0\.1:1"),
        (f"127.0.0.1:{port}", AuthenticationError, "check username and password"),
        (f":hunter2@127.0.0.1:{port}", ServerError, "cluster support disabled"),
    ):
        options = Options.of({"url": f"redis+cluster://{nodes}", "queue": "{q}", "retryTimeout": "0.2"})
        with pytest.raises(error, match=says):
            Steps(Blocking(options.settings()), "__pressure__", "{q}").measure()


def test_waiting_is_shorter_than_the_patience_with_an_answer(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    options = {"url": server.url, "queue": "jobs", "responseTimeout": "0.4", "pollWait": "0.1", "retryTimeout": "1"}
    steps = Steps(Blocking(Options.of(options).settings()), "__pressure__", "jobs")
    steps.create(0)
    with admin(server) as plain:
        plain.lpush(steps.keys.queue.messages, "x")
        plain.delete(steps.keys.queue.free("consumer"))
    epoch, _, _ = steps.adopt("g")
    assert isinstance(steps.patiently(lambda held: steps.seal("g", epoch, 0, 5, held=held), 2.5), Busy)
    steps.server.close()
