"""`apressure limit` and `hold`, and where else the command line shows limits."""

from __future__ import annotations

import pytest
import redis

from apressure import EventQueue, QueueEmptyError, sync
from tests.integration.commands import Commands, wait_until
from tests.okq import Okq

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

NONE = {"rate": None, "concurrency": None, "held_for": 0.0, "key": None}


def test_limits_are_set_and_shown(cli: Commands, queue: str) -> None:
    assert cli("limit", queue).stdout == b"orders hands out any number\n"
    assert cli.json("limit", queue) == {"name": "orders", "limits": NONE}
    done = cli("limit", queue, "--rate", "100/60", "--concurrency", "20")
    assert done.stdout == b"orders hands out at most 100 in 60 s and 20 in flight\n"
    told = cli.json("limit", queue, "--rate", "5/0.5", "--burst", "3")
    assert told["limits"] == {**NONE, "rate": {"count": 5, "per": 0.5, "burst": 3}, "concurrency": 20}
    assert cli("ls").stdout == b"orders\t0\t10\tlimited\n"
    shown = b"\nlimits\tat most 5 in 0.5 s with bursts of 3 and 20 in flight\n"
    assert shown in cli("stat", queue).stdout
    assert cli.json("stat", queue)["limits"] == told["limits"]
    (finding,) = cli.json("doctor", queue)["findings"]
    assert (finding["kind"], finding["fault"]) == ("limited", False)
    assert "at most 5 in 0.5 s" in finding["text"]
    assert cli.json("limit", queue, "--rate", "off", "--concurrency", "off")["limits"] == NONE
    assert cli("ls").stdout == b"orders\t0\t10\topen\n"


def test_the_bound_is_changed(cli: Commands, queue: str) -> None:
    cli("put", queue, *map(str, range(10)))
    with cli.running("put", queue, "more") as process:
        wait_until(lambda: cli.stat(queue).length == 10)
        assert cli("limit", queue, "--bound", "5000").stdout == b"orders hands out any number. At most 5,000 wait\n"
        assert process.wait(timeout=120) == 0
    assert cli.stat(queue).bound == 5000
    assert cli.json("limit", queue, "--bound", "off") == {"name": "orders", "limits": NONE, "bound": 0}
    assert b"neither a number nor off" in cli("limit", queue, "--bound", "-5", code=2).stderr
    assert cli.stat(queue).bound == 0
    missing = cli("limit", "events:nothing", "--bound", "5", code=3).stderr
    assert b"the queue 'nothing' does not exist: create it first with `apressure create events:nothing`, or" in missing


def test_a_hold_is_set_shown_and_ended(cli: Commands, queue: str) -> None:
    cli("put", queue, "a", "--close")
    assert cli("hold", queue, "1000").stdout.startswith(b"orders hands out nothing for ")
    assert cli("ls").stdout == b"orders\t1\t10\tclosed, held\n"
    with cli.running("get", queue) as process:
        wait_until(lambda: cli.stat(queue).consumer.state == "leased" or cli.stat(queue).length == 1)
        assert process.poll() is None
        assert cli.json("hold", queue, "0") == {"name": "orders", "limits": NONE}
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, b"a\n", b"")


def test_keys_are_set_and_shown(cli: Commands, url: str) -> None:
    events = "events:changes"
    cli("create", events)
    told = cli.json("limit", events, "--key", "/customer/id", "--key-at-most", "3")
    assert told["limits"]["key"] == {"at_most": 3, "pointer": "/customer/id", "fair": True}
    done = cli("limit", events, "--key", "/customer/id", "--key-fifo")
    assert done.stdout == b"events:changes hands out at most 1 of a key (/customer/id)\n"
    done = cli("limit", events, "--key", "given")
    assert done.stdout == b"events:changes hands out at most 1 of a key, in turns\n"
    for item in ("a", "b"):
        cli("put", events, item, "--key", "k")
    assert b"\nparked\t" in cli("stat", events).stdout
    with sync.Queue(EventQueue("changes", url=url)) as queue:
        delivery = queue.receive()
        with pytest.raises(QueueEmptyError):
            queue.receive(timeout=0)
        notes = {finding["kind"]: finding["text"] for finding in cli.json("doctor", events)["findings"]}
        assert "Other clients of its format are not limited" in notes["limited"]
        assert notes["parked"] == "Of the items that wait, 1 wait for others of their key."
        delivery.release()
    assert cli("get", events, "-n", "2", "--no-follow").stdout == b"a\nb\n"
    assert cli.json("limit", events, "--key", "off")["limits"] == NONE
    cli("limit", events, "--key-at-most", "2", code=2)
    cli("limit", events, "--key", "customer", code=2)
    assert b"cannot tell the messages of a key" in cli("put", "files:spool", "a", "--key", "k", code=1).stderr
    refused = cli("put", "orders", "a", "--key", "k", code=1).stderr
    assert b"use an EventQueue (events:orders) or a TaskQueue (tasks:orders)" in refused
    cli("delete", events)


def test_an_impatient_get_says_why(cli: Commands, queue: str) -> None:
    cli("hold", queue, "1000")
    cli("put", queue, "a")
    done = cli("get", queue, "-n", "1", "--timeout", "0", code=6)
    assert b"the queue 'orders' is held" in done.stderr
    assert cli("get", queue, "--no-follow").stdout == b""
    cli("hold", queue, "0")
    cli("limit", queue, "--rate", "1/1000")
    cli("put", queue, "b")
    assert cli("get", queue, "-n", "1", "--timeout", "0").stdout == b"a\n"
    done = cli("get", queue, "-n", "1", "--timeout", "0", code=6)
    assert b"the queue 'orders' is limited" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rate", "100"], b"neither N/SECONDS, such as 100/60, nor off"),
        (["--rate", "1/1/1"], b"neither N/SECONDS"),
        (["--rate", "0/60"], b"N of --rate must be"),
        (["--rate", "1/0"], b"SECONDS of --rate must be"),
        (["--rate", "-1/60"], b"neither N/SECONDS"),
        (["--rate", "\u0661/60"], b"neither N/SECONDS"),
        (["--burst", "3"], b"--burst needs --rate N/SECONDS"),
        (["--rate", "off", "--burst", "3"], b"--burst needs --rate N/SECONDS"),
        (["--concurrency", "many"], b"neither a number nor off"),
        (["--concurrency", "0"], b"--concurrency must be"),
    ],
)
def test_bad_limits_are_refused_and_change_nothing(cli: Commands, queue: str, arguments: list[str], why: bytes) -> None:
    assert why in cli("limit", queue, *arguments, code=2).stderr
    assert cli.json("limit", queue)["limits"] == NONE


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1000001", "soon"])
def test_a_bad_hold_is_refused(cli: Commands, queue: str, seconds: str) -> None:
    cli("hold", queue, "--", seconds, code=2)
    assert cli.json("limit", queue)["limits"] == NONE


def test_a_directory_has_no_limits(cli: Commands, tmp_path: object) -> None:
    done = cli("limit", f"files:{tmp_path}/orders", "--concurrency", "3", code=1)
    assert b"a FileQueue cannot limit its consumers" in done.stderr


def test_the_doctor_tells_of_a_client_that_knows_no_limits(cli: Commands, db: redis.Redis) -> None:
    okq = Okq(db)
    cli("create", "events:changes")
    cli("limit", "events:changes", "--concurrency", "1")
    for item in ("a", "b"):
        cli("put", "events:changes", item)
    kinds = [finding["kind"] for finding in cli.json("doctor", "events:changes")["findings"]]
    assert "bypassed" not in kinds
    first, second = okq.pop("changes"), okq.pop("changes")
    notes = {finding["kind"]: finding["text"] for finding in cli.json("doctor", "events:changes")["findings"]}
    assert notes["bypassed"].startswith("2 items are in flight, and at most 1 may be")
    for popped in (first, second):
        assert okq.ack("changes", popped[0]) == 1
    cli("delete", "events:changes")
