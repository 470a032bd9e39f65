"""Messages of the library in the words of the command line."""

from __future__ import annotations

import logging

import pytest

from apressure import QueueDoesNotExistError
from apressure.cli.running import _Printer
from apressure.cli.wording import in_options, reword, worded
from apressure.core.requests import failure

NAMES = {
    "bound": "--bound", "create": "--create", "dedup_id": "--dedup-id", "dedup_window": "--dedup-window",
    "key": "--key", "max": "--max", "name": "NAME", "prefix": "--prefix", "replicas": "--replicas",
    "timeout": "--timeout", "url": "--url",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timeout must be at least 0 seconds, not -1", "--timeout must be at least 0 seconds, not -1"),
        ("bound= is for create=True: add create=True.", "--bound is for --create: add --create."),
        ("it took longer than timeout=1.5 s", "it took longer than --timeout 1.5 s"),
        ("give dedup_id=, too", "give --dedup-id, too"),
        ("a dedup_id of the dedup_window", "a --dedup-id of the --dedup-window"),
        ("durability='all' would do: leave out durability=", "--replicas all would do: leave out --replicas"),
        ("the first ones with max_items=", "the first ones with --max"),
        ("pointer must be one", "--key must be one"),
        ("name must be a string", "NAME must be a string"),
        ("to change it, call set_bound()", "to change it, run `apressure limit --bound`"),
        ("there is no directory /a. create() makes it", "there is no directory /a. `apressure create` makes it"),
        ("the prefix, as in prefix='{app}'. The text", "the prefix, as in --prefix {app}. The text"),
        ("it is at url='redis://[::1]:6379', or", "it is at --url redis://[::1]:6379, or"),
        ("timeout=-1 or timeout=1e-05, not more", "--timeout -1 or --timeout 1e-05, not more"),
        # These stay: what is no option here, words, names that somebody gave, and what says it already.
        ("leave out lease= and scripting=False", "leave out lease= and scripting=False"),
        ("without create=False", "without create=False"),
        ("create(bound=...) sets it", "create(bound=...) sets it"),
        ("dedup_id=… or max=datetime.now(UTC)", "dedup_id=… or max=datetime.now(UTC)"),
        ("a key must be given until the timeout", "a key must be given until the timeout"),
        ("the queue's 'dedup_id' and `put(key=5)`", "the queue's 'dedup_id' and `put(key=5)`"),
        ("cannot read files:spool/dedup_id or /a/dedup_id.txt", "cannot read files:spool/dedup_id or /a/dedup_id.txt"),
        ("use create=True (on the command line --create)", "use create=True (on the command line --create)"),
    ],
)
def test_a_message_names_options(text: str, said: str) -> None:
    assert in_options(text, NAMES) == said


def test_an_error_keeps_its_data() -> None:
    error = QueueDoesNotExistError("create it with create=True", name="orders")
    reword(error, NAMES)
    assert (str(error), error.name) == ("create it with --create", "orders")
    refused = OSError(2, "key must", "file")
    reword(refused, NAMES)
    assert refused.strerror == "key must"


def test_what_a_handler_has_said_stays_as_it_is() -> None:
    error = failure("orders", "1", "ValueError: timeout=3 for the dedup_id")
    said = str(error)
    reword(error, NAMES)
    assert str(error) == said == "a request to the queue 'orders' failed: ValueError: timeout=3 for the dedup_id"


def test_a_call_in_a_block_has_names_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"^--concurrency must be positive$"), worded(at_most="--concurrency"):
        raise ValueError("at_most must be positive")


def test_what_a_log_line_quotes_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text, error = "the queue has bound=%d, and the handler failed: %s", OSError("timeout=5 of the dedup_id is over")
    _Printer((), NAMES).emit(logging.LogRecord("apressure", logging.WARNING, "", 0, text, (3, error), None))
    said = "apressure: the queue has --bound 3, and the handler failed: timeout=5 of the dedup_id is over\n"
    assert capsys.readouterr().err == said
