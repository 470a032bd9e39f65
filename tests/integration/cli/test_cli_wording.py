"""Errors and warnings of commands name the options that a person can type."""

from __future__ import annotations

import shlex

import pytest

from tests.integration.commands import Commands

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("put orders a --expires 5", 2, "Leave out --expires, and put the time into the item"),
        ("put events:orders a --expires 0", 2, "--expires must be more than 0"),
        ("put events:orders a --delay inf", 2, "--delay must be between 0 and"),
        ("put events:orders a --key ''", 2, "--key must have 1 to"),
        ("put orders a --cost 3", 1, "or leave out --cost"),
        ("put orders a --dedup-id ''", 2, "--dedup-id must have 1 to"),
        ("put orders a --dedup-id x", 2, "is refused with --dedup-window, or use"),
        ("put orders a --dedup-id x --dedup-window 9 --replace", 2, "leave out --replace, or use"),
        ("put orders a --fsync", 7, "durability with --fsync needs the server's append-only file"),
        ("create events:more --bound 99999999999999", 2, "--bound must be between 0 and"),
        ("create orders", 4, "Pass --exist-ok to use it as it is"),
        ("ask events:orders a --timeout inf", 2, "--timeout must be more than 0"),
        ("limit orders --rate 5/1 --burst 9999999999", 2, "--burst must be between 1 and"),
        ("limit events:orders --key x", 2, "--key must be a JSON pointer"),
        ("limit events:orders --key given --key-at-most 9999999999", 2, "--key-at-most must be between 1 and"),
        ("hold orders inf", 2, "SECONDS must be between 0 and"),
        ("promote orders --id 1", 1, "or the first ones with --max"),
        ("schedules every orders nightly '* * * * *' x --missed some", 2, "--missed must be 'none', 'one' or 'all'"),
    ],
)
def test_an_error_names_the_option(cli: Commands, queue: str, command: str, code: int, said: str) -> None:
    cli("create", "events:orders")
    try:
        assert said in cli(*shlex.split(command), code=code).stderr.decode()
    finally:
        cli("delete", "events:orders")


def test_json_and_warnings_name_it_too(cli: Commands, queue: str) -> None:
    assert b"--expires must be" in cli("put", "events:orders", "a", "--expires", "0", "--json", code=2).stderr
    kept = (
        "apressure: the queue 'orders' exists with --bound 10 and keeps it, not 5: to change it, run `apressure limit "
        "--bound`\n"
    )
    cli("create", queue, "--exist-ok", "--bound", "5", warned=kept)
