"""`apressure ls --pattern`: the queues of every kind on a server."""

from __future__ import annotations

from collections.abc import Callable

from apressure import AsyncQueue, EventQueue, TaskQueue
from apressure.embedded import EmbeddedServer
from tests.integration.cli.test_cli_terminal import at_a_terminal
from tests.integration.commands import Commands


async def test_a_pattern_lists_queues_of_events_and_tasks_too(make_server: Callable[..., EmbeddedServer]) -> None:
    url = make_server().url
    cli = Commands(url)
    assert cli("ls", "--pattern", "*").stdout == b""
    async with (
        AsyncQueue("orders", url=url) as orders, AsyncQueue("mail", url=url) as mail,
        EventQueue("orders.clicks", url=url) as clicks, EventQueue("other", url=url) as other,
        TaskQueue("orders.encode", url=url) as encode,
    ):  # fmt: skip
        await orders.create(bound=5)
        await mail.create()
        await clicks.put_many([b"1", b"2"])
        await other.put(b"1")
        await encode.create(bound=3)
        await encode.pause()
        async with clicks.consumer():
            lines = cli("ls", "--pattern", "orders*").stdout.decode().splitlines()
            assert lines == [
                "orders\t0\t5\topen\tAsyncQueue",
                "orders.clicks\t2\t0\topen\tEventQueue",
                "orders.encode\t0\t3\tpaused\tTaskQueue",
            ]
            listed = cli.json("ls", "--pattern", "o*")
            table = at_a_terminal(cli, "ls", "--pattern", "*").decode()
    assert [(one["name"], one["kind"]) for one in listed] == [
        ("orders", "AsyncQueue"),
        ("orders.clicks", "EventQueue"),
        ("other", "EventQueue"),
        ("orders.encode", "TaskQueue"),
    ]
    assert [one["consumers"] for one in listed if "consumers" in one] == [1, 0]
    assert all("put_count" not in one for one in listed)
    assert all(word in table for word in ("Kind", "mail", "orders.clicks", "EventQueue", "paused"))
    assert cli("ls").stdout == b"mail\t0\t0\topen\norders\t0\t5\topen\n"
    assert cli("ls", "--pattern", "nothing*").stdout == b""
