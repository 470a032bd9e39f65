"""Which server a command uses, and how it handles servers with damaged keys."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
import redis as redis_py

from apressure.embedded import EmbeddedServer
from tests.integration.commands import Commands, wait_until
from tests.servers import SERVERS
from tests.topologies import cluster, replicated

NOBODY = "redis://127.0.0.1:1"


def test_an_option_before_the_command_wins_over_the_environment(url: str) -> None:
    command = Commands(url)
    assert command("ls").stdout == b""
    assert b"127.0.0.1:1" in command("--url", NOBODY, "ls", code=7).stderr
    assert b"127.0.0.1:1" in command("ls", "--url", NOBODY, code=7).stderr
    assert b"127.0.0.1:1" in command("ls", env={**command.environment, "APRESSURE_URL": NOBODY}, code=7).stderr


def test_an_embedded_server_that_would_lose_the_items_is_refused(url: str) -> None:
    refused = Commands(url)("put", "jobs", "1", "--create", "--url", "embedded://", code=2)
    assert b"embedded:///some/dir" in refused.stderr


def test_ls_shows_the_healthy_queues_beside_a_damaged_one(url: str) -> None:
    command = Commands(url)
    admin = redis_py.Redis.from_url(url)
    command("create", "healthy")
    command("create", "odd:bound")  # a legal name, though it looks like a key of a queue "odd"
    admin.lpush("__pressure__:list:bound", 1)  # no queue: not even a string
    admin.set("__pressure__:damaged:bound", "many")
    shown = command("ls", code=1)
    assert [line.split(b"\t")[0] for line in shown.stdout.splitlines()] == [b"healthy", b"odd:bound"]
    assert b"damaged" in shown.stderr
    assert b"user_script" not in shown.stderr
    assert b"damaged" in command("stat", "damaged", code=7).stderr
    admin.flushall()
    admin.close()


def test_put_says_how_many_items_it_put_when_one_is_too_large(url: str) -> None:
    command = Commands(url)
    refused = command("put", "jobs", "--create", "--max-size", "10", input=b"a\n" + b"0" * 100 + b"\nb\n", code=1)
    assert b"1 items were put" in refused.stderr
    assert command("get", "jobs", "--no-follow").stdout == b"a\n"
    command("delete", "jobs")


@pytest.mark.parametrize("program", SERVERS)
def test_a_second_ctrl_c_does_not_wait_for_a_server_that_stands_still(
    make_server: Callable[..., EmbeddedServer], program: str
) -> None:
    server = make_server(program)
    command = Commands(server.url)
    command.create("jobs")
    command.fill("jobs", b"0")
    with command.running("get", "jobs") as process:
        wait_until(lambda: command.stat("jobs").consumed_messages)
        os.kill(server.pid, signal.SIGSTOP)
        while process.poll() is None:  # several that come together are one
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        os.kill(server.pid, signal.SIGCONT)
    assert process.returncode == -signal.SIGINT  # the signal's own effect, not the command's last word (130)


@pytest.mark.parametrize("program", SERVERS)
def test_put_and_get_wait_for_replicas_and_the_disk(program: str) -> None:
    with replicated(program) as pair:
        command = Commands(pair.url)
        put = command("put", "jobs", "1", "2", "--create", "--replicas", "1", "--json")
        assert json.loads(put.stdout)["put"] == 2
        assert command("get", "jobs", "-n", "2", "--replicas", "1").stdout == b"1\n2\n"
        refused = command("put", "jobs", "3", "--fsync", code=7)
        assert b"appendonly" in refused.stderr or b"WAITAOF" in refused.stderr
        all_have_it = command("put", "jobs", "4", "--replicas", "all", "--json")
        assert json.loads(all_have_it.stdout)["put"] == 1
        assert command("get", "jobs", "-n", "1", "--replicas", "all").stdout == b"4\n"
        for wrong in ("ALL", "-1", "1.5"):
            assert b"neither a number nor 'all'" in command("put", "jobs", "5", "--replicas", wrong, code=2).stderr
        assert command.stat("jobs").length == 0


def test_ls_finds_the_queues_of_all_nodes_of_a_cluster() -> None:
    with cluster("valkey") as nodes:
        command = Commands(nodes.url)
        names = sorted(f"{{jobs{number}}}" for number in range(5))
        for name in names:
            command("put", name, "1", "--create")
        assert [line.split(b"\t")[0].decode() for line in command("ls").stdout.splitlines()] == names
        assert b"braces" in command("create", "jobs", code=2).stderr


def test_put_counts_unconfirmed_items_separately(url: str) -> None:
    command = Commands(url)
    command("create", "jobs")
    refused = json.loads(command("put", "jobs", "1", "2", "--replicas", "1", "--json", code=7).stderr)
    assert (refused["put"], refused["unconfirmed"], refused["not_put"]) == (2, 2, 0)
    assert command.stat("jobs").length == 2
    command("delete", "jobs")
