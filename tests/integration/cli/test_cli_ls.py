"""`apressure ls` on a terminal, and again and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apressure import AsyncQueue, EventQueue, QueueEmptyError, TaskQueue
from apressure.embedded import EmbeddedServer
from tests.integration.cli.test_cli_terminal import at_a_terminal
from tests.integration.commands import Commands


async def test_a_table_shows_queues_of_every_kind(make_server: Callable[..., EmbeddedServer]) -> None:
    url = make_server().url
    cli = Commands(url)
    assert cli("ls").stdout == b""
    async with (
        AsyncQueue("mail", url=url) as mail, EventQueue("clicks", url=url) as clicks,
        TaskQueue("encode", url=url) as encode,
    ):  # fmt: skip
        await mail.create()
        await clicks.put_many([b"1", b"2"])
        await encode.create(bound=3)
        await encode.pause()
        async with clicks.consumer():
            table = at_a_terminal(cli, "ls").decode()
            (listed,) = cli.json("ls", "--pattern", "events:*")
    assert listed["consumers"] == 1
    assert all(word in table for word in ("Queue", "mail", "events:clicks", "tasks:encode", "paused"))


async def test_it_looks_again(make_server: Callable[..., EmbeddedServer]) -> None:
    url = make_server().url
    with Commands(url).running("ls", "--watch", "--interval", "0.05") as process:
        assert process.stdout is not None
        async with TaskQueue("encode", url=url) as encode:
            await encode.create()
            for number in range(2):
                await encode.put("x")
                while process.stdout.readline() != b"tasks:encode\t%d\t0\topen\n" % (number + 1):
                    pass


async def test_queues_are_listed_that_have_only_dead_letters_or_items_for_later(
    make_server: Callable[..., EmbeddedServer],
) -> None:
    url = make_server().url
    async with EventQueue("dead", url=url, max_attempts=1) as dead, EventQueue("later", url=url) as later:
        await dead.put(b"x")
        await (await dead.receive()).nack(ValueError("no"))
        with pytest.raises(QueueEmptyError):
            await dead.receive(timeout=0)
        await later.put(b"x", delay=3600)
    listed = Commands(url).json("ls")
    assert [(one["address"], one["dead_letters"], one["delayed"]) for one in listed] == [
        ("events:dead", 1, 0), ("events:later", 0, 1),
    ]  # fmt: skip
