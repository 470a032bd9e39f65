"""`apressure pause` and `resume`, and where else the command line shows a pause."""

from __future__ import annotations

import json

import pytest

from tests.integration.commands import Commands, wait_until

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def test_a_consumer_stops_and_goes_on(cli: Commands, queue: str) -> None:
    assert cli("pause", queue).stdout == b"paused orders\n"
    cli("put", queue, "a", "b", "--close")
    with cli.running("get", queue) as process:
        wait_until(lambda: cli.stat(queue).consumer.state == "leased")
        assert cli.stat(queue).length == 2
        assert process.stderr is not None
        said = process.stderr.readline()  # after a moment
        assert said == b"apressure: orders is paused: `apressure resume orders` lets consumers go on\n"
        assert process.poll() is None
        assert cli("resume", queue).stdout == b"resumed orders\n"
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, b"a\nb\n", b"")


def test_once_more(cli: Commands, queue: str) -> None:
    assert cli("resume", queue).stdout == b"orders is not paused\n"
    assert cli.json("pause", queue) == {"name": "orders", "paused": True, "changed": True}
    assert cli.json("pause", queue) == {"name": "orders", "paused": True, "changed": False}
    assert cli("pause", queue).stdout == b"orders is paused already\n"
    assert cli.json("resume", queue) == {"name": "orders", "paused": False, "changed": True}
    assert cli.json("resume", queue) == {"name": "orders", "paused": False, "changed": False}


def test_it_is_shown(cli: Commands, queue: str) -> None:
    assert b"\npaused\tno\n" in cli("stat", queue).stdout
    cli("pause", queue)
    assert b"\npaused\tyes\n" in cli("stat", queue).stdout
    assert cli("ls").stdout == b"orders\t0\t10\tpaused\n"
    assert cli.json("stat", queue)["paused"] is True
    (finding,) = cli.json("doctor", queue)["findings"]
    assert (finding["kind"], finding["fault"]) == ("paused", False)
    cli("close", queue)
    assert cli("ls").stdout == b"orders\t0\t10\tclosed, paused\n"


def test_an_impatient_get_says_why(cli: Commands, queue: str) -> None:
    cli("pause", queue)
    cli("put", queue, "a")
    done = cli("get", queue, "-n", "1", "--timeout", "0", code=6)
    assert b"the queue 'orders' is paused" in done.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_queue_that_does_not_exist(cli: Commands, command: str) -> None:
    assert (
        cli(command, "nothing", code=3).stderr
        == b"apressure: the queue 'nothing' does not exist: create it first with "
        b"`apressure create nothing`, or check the URL and the prefix\n"
    )
    error = json.loads(cli(command, "nothing", "--json", code=3).stderr)
    assert error["error"] == "QueueDoesNotExistError"
