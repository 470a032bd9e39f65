"""What the views of the page show, as HTML and as JSON, of queues of every kind and of any name."""

from __future__ import annotations

import asyncio
import html
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from apressure import AsyncQueue, Client, EventQueue, FileQueue, QueueClosedError, TaskQueue
from apressure.core.history import Minute
from apressure.embedded import EmbeddedServer
from apressure.web.rendering import url_of
from tests.integration.web.conftest import OpenPage, shown, until

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]


def links(answer: httpx.Response, path: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="([^"]*)"', answer.text) if path in link]


async def test_queues_of_every_kind_are_shown_with_all_their_views(
    open_page: OpenPage, client: Client, tmp_path: Path
) -> None:
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create(bound=2)
    await orders.put_many([b"1", b"2"])
    await EventQueue("clicks", client=client).put(b"x")
    await TaskQueue("reports", client=client).create()
    async with FileQueue("spool", directory=tmp_path) as files:
        await files.put(b"x")
    page = await open_page("*", f"files:{tmp_path}/*", "missing")
    found = {one["address"]: one for one in await shown(page, 5)}
    assert {address: one["state"] for address, one in found.items()} == {
        "orders": "full", "events:clicks": "unconsumed", "tasks:reports": "open", f"files:{tmp_path}/spool": "open",
        "missing": "missing",
    }  # fmt: skip
    assert (found["orders"]["length"], found["orders"]["bound"], found["orders"]["kind"]) == (2, 2, "AsyncQueue")
    overview = await page.get("/")
    assert "no consumer" in overview.text
    ours = links(overview, "/queue?")
    assert len(ours) == 5
    for link in ours:
        answer = await page.get(link)
        assert answer.status_code == 200
        for view in links(answer, "/queue/"):
            if "missing" not in view:
                assert (await page.get(view)).status_code == 200, view
                assert (await page.get(f"{view}&format=json")).json()["address"] in found


def with_password(server: EmbeddedServer) -> str:
    return f"redis://:very-secret@127.0.0.1:{server.port}/0"


HOSTILE = (
    "../../etc/passwd", "..", ".", "a/b", "%2e%2e%2f", "a?b#c&at=x", "<script>alert(1)</script>", "\"'><img src=x>",
    "events:x", "redis://host/orders", "\udcff\udc80", "n" * 1000, "ü" * 500, "\u202egnp.exe", "a\nb\x00\x1b[31m",
    "{{ 7 * 7", "a+b c", " ",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
async def test_the_links_of_a_queue_survive_any_name(open_page: OpenPage, client: Client, name: str) -> None:
    await EventQueue(name, client=client).put(b"x")
    page = await open_page("events:*")
    (row,) = await shown(page, 1)
    assert row["address"] == f"events:{name}"
    overview = await page.get("/")
    assert "<script>alert" not in overview.text
    assert "<img" not in overview.text
    assert "\u202e" not in overview.text
    assert "\x1b" not in overview.text
    (link,) = links(overview, "/queue?")
    found = (await page.get(f"{link}&format=json")).json()
    assert found["address"] == f"events:{name}"
    for view in links(await page.get(link), "/queue/"):
        answer = await page.get(view)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text


async def test_the_overview_is_filtered_sorted_and_paged(open_page: OpenPage, client: Client) -> None:
    for number in range(120):
        await EventQueue(f"q{number:03}", client=client).put_many([b"x"] * (number % 7))
        await EventQueue(f"q{number:03}", client=client).create()
    page = await open_page("events:*")
    rows = await shown(page, 120)
    assert len(rows) == 100
    assert [row["severity"] for row in rows] == sorted((row["severity"] for row in rows), reverse=True)
    last = (await page.get("/?page=2&sort=name&format=json")).json()
    assert [row["address"] for row in last["queues"]] == [f"events:q{number:03}" for number in range(100, 120)]
    by_length = (await page.get("/?sort=length&format=json")).json()["queues"]
    assert by_length[0]["length"] == 6
    filtered = (await page.get("/?filter=Q01&format=json")).json()
    assert filtered["found"] == 10
    assert "page=2" in (await page.get("/?filter=q")).text
    for wrong in ("/?page=0", "/?page=x", "/?page=99999999999999", "/?sort=nonsense", "/?filter=%ff%00", "/?page=-1"):
        assert (await page.get(wrong)).status_code == 200
    # The layout is compact: a page of a hundred queues stays below 100 kB.
    assert len((await page.get("/")).content) < 100_000


async def test_a_queue_has_charts_of_what_was_seen(open_page: OpenPage, client: Client) -> None:
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create()
    now = int(time.time()) // 60 * 60
    for minutes in (9, 8, 7):
        await orders.write_history(Minute(now - minutes * 60, minutes, 1, 2, 3, 4, 5))
    page = await open_page("orders")
    await shown(page, 1)
    answer = await page.get("/queue?at=orders")
    assert answer.text.count("<svg") == 3
    assert "waiting: 7 now, at most 9" in answer.text
    assert len((await page.get("/queue?at=orders&hours=24&format=json")).json()["minutes"]) == 3
    assert len((await page.get("/queue?at=orders&hours=1&format=json")).json()["minutes"]) == 3


async def test_failures_of_workers_and_their_times_have_charts(open_page: OpenPage, client: Client) -> None:
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create()
    now = int(time.time()) // 60 * 60
    for minutes in (100, 8, 7):
        await orders.write_history(Minute(now - minutes * 60, minutes, 1, 2, 3, 4, 5, minutes % 8, 100 * minutes))
    page = await open_page("orders")
    await shown(page, 1)
    answer = await page.get("/queue?at=orders")
    assert answer.text.count("<svg") == 5
    assert "failed: 7 now, at most 7" in answer.text
    assert "mean: 700 now, at most 800" in answer.text
    found = (await page.get("/queue?at=orders&format=json")).json()["minutes"]
    assert [(one["failed"], one["duration"]) for one in found] == [(0, 800), (7, 700)]


async def test_messages_are_shown_by_pages_without_what_they_contain(open_page: OpenPage, client: Client) -> None:
    clicks = EventQueue[bytes]("clicks", client=client)
    await clicks.create()
    await clicks.put_many([b'{"customer": "<card no. 7>", "n": %d}' % number for number in range(120)])
    await clicks.put(b"later", delay=3600)
    delivery = await clicks.receive()
    page = await open_page("events:clicks")
    await shown(page, 1)
    found, pages, where = 0, 0, "/queue/messages?at=events:clicks&place=waiting"
    while where:
        answer = await page.get(where)
        assert "card no. 7" not in answer.text
        twin = (await page.get(f"{where}&format=json")).json()
        body = twin["messages"][0]["body"]
        assert (body["format"], body["text"], body["size"] > 27) == ("hidden", "", True)
        assert twin["messages"][0]["key"] is None
        found, pages = found + len(twin["messages"]), pages + 1
        where = next(iter(links(answer, "cursor=")), "")
    assert (found, pages) == (119, 3)
    newest = (await page.get("/queue/messages?at=events:clicks&place=waiting&newest=1&format=json")).json()
    assert newest["messages"][0]["body"]["size"] == len(b'{"customer": "<card no. 7>", "n": 119}')
    assert "119 waiting" in (await page.get("/queue/messages?at=events:clicks&place=waiting")).text
    for place, words in (("in_flight", "1 in flight"), ("delayed", "1 delayed"), ("parked", "0 parked"), ("no", "")):
        assert words in (await page.get(f"/queue/messages?at=events:clicks&place={place}")).text
    for cursor in ("bad", "delayed-oldest-1", "\udcff"):
        wrong = await page.get(url_of("", "queue/messages", at="events:clicks", cursor=cursor))
        assert wrong.status_code == 404
        assert "cursor" in wrong.text
    await delivery.ack()


async def test_contents_are_shown_if_that_is_asked_for_and_redacted(open_page: OpenPage, client: Client) -> None:
    clicks = EventQueue[bytes]("clicks", client=client)
    await clicks.put_many([b'{"card": "<card no. 7>", "n": 1}', b"\xff\x00"])
    await clicks.put(b"third", key="customer-7")
    page = await open_page("events:clicks", show_bodies=True)
    await clicks.create()
    await shown(page, 1)
    where = "/queue/messages?at=events:clicks"
    answer = await page.get(where)
    assert not [word for word in ("&lt;card no. 7&gt;", "ff 00", "third", "customer-7") if word not in answer.text]
    redacted = await open_page("events:clicks", show_bodies=True, redact=["/card"])
    await shown(redacted, 1)
    answer = await redacted.get(where)
    assert "[redacted]" in answer.text
    assert "&#34;n&#34;: 1" in answer.text
    assert not [secret for secret in ("card no. 7", "ff 00", "third", "customer-7") if secret in answer.text]


async def test_workers_of_all_queues_are_shown(open_page: OpenPage, client: Client) -> None:
    clicks = EventQueue[bytes]("clicks", client=client)
    await clicks.create()
    page = await open_page("events:clicks")
    async with clicks.consumer():
        found = await until(page, "/workers?format=json", lambda found: found["workers"])
        assert [(one["address"], one["kind"]) for one in found["workers"]] == [("events:clicks", "consumer")]
        answer = await page.get("/workers")
        assert found["workers"][0]["id"] in answer.text
        assert found["workers"][0]["id"] in (await page.get("/queue?at=events:clicks")).text


async def test_producers_that_wait_are_shown(open_page: OpenPage, client: Client) -> None:
    clicks = EventQueue[bytes]("clicks", client=client)
    await clicks.create(1)
    await clicks.put(b"1")
    page = await open_page("events:clicks")
    put = asyncio.ensure_future(clicks.put(b"2"))
    found = await until(
        page, "/queue?at=events:clicks&format=json",
        lambda found: found["statistics"] and found["statistics"]["waiting_producers"],
    )  # fmt: skip
    (producer,) = found["statistics"]["waiting_producers"]
    assert found["states"][0]["text"].startswith("full: 1 producer waits, for ")
    text = (await page.get("/queue?at=events:clicks")).text
    assert "Producers that wait for room" in text
    assert producer["id"] in text
    assert await clicks.get() == b"1"
    await put


async def test_dead_letters_are_grouped_by_their_errors(open_page: OpenPage, client: Client) -> None:
    queue = EventQueue[bytes]("clicks", client=client, max_attempts=1)
    await queue.put_many([b"secret-1", b"secret-2", b"secret-3"])
    await queue.close()
    for error in (ValueError("<b>bad</b>"), ValueError("<b>bad</b>"), KeyError("x")):
        await (await queue.receive()).nack(error)
    with pytest.raises(QueueClosedError):  # all of them are dead letters
        await queue.receive()
    page = await open_page("events:clicks")
    await shown(page, 1)
    found = (await page.get("/queue/letters?at=events:clicks&format=json")).json()
    assert [(group["error"], group["count"]) for group in found["groups"]] == [
        ("ValueError: <b>bad</b>", 2), ("KeyError: 'x'", 1),
    ]  # fmt: skip
    answer = await page.get("/queue/letters?at=events:clicks")
    assert "&lt;b&gt;bad" in answer.text
    assert "secret" not in answer.text
    seen = (await page.get("/queue?at=events:clicks&format=json")).json()
    assert list(seen["failures"].items()) == [("ValueError", 2), ("KeyError", 1)]
    shown_page = (await page.get("/queue?at=events:clicks")).text
    (link,) = (html.unescape(one) for one in re.findall(r'href="([^"]*error=ValueError)"', shown_page))
    assert [group["count"] for group in (await page.get(f"{link}&format=json")).json()["groups"]] == [2]
    with_bodies = await open_page("events:clicks", show_bodies=True)
    await shown(with_bodies, 1)
    assert "secret-1" in (await with_bodies.get("/queue/letters?at=events:clicks")).text


async def test_tasks_are_shown_with_their_progress(open_page: OpenPage, client: Client) -> None:
    queue = TaskQueue[Any]("reports", client=client)
    await queue.create()
    await queue.put({"secret": "<parameters>"})
    await queue.put({"secret": 2})
    page = await open_page("tasks:reports", show_bodies=True)
    hidden = await open_page("tasks:reports")
    await shown(page, 1)
    await shown(hidden, 1)
    async with queue.consumer() as consumer:
        async for _ in consumer:
            answer = await page.get("/queue/tasks?at=tasks:reports")
            assert "&lt;parameters&gt;" in answer.text
            assert "secret" not in (await hidden.get("/queue/tasks?at=tasks:reports")).text
            found = (await page.get("/queue/tasks?at=tasks:reports&status=pending&format=json")).json()
            assert [one["status"] for one in found["tasks"]] == ["pending"]
            break
    assert (await page.get("/queue/tasks?at=orders")).status_code == 404


async def test_schedules_of_all_queues_are_shown_without_their_items(open_page: OpenPage, client: Client) -> None:
    queue = EventQueue[bytes]("clicks", client=client)
    await queue.create()
    await queue.every("<report>", 3600, b"secret-item")
    page = await open_page("events:clicks", show_bodies=True)
    found = await until(page, "/schedules?format=json", lambda found: found["schedules"])
    assert found["schedules"][0]["schedule"]["name"] == "<report>"
    answer = await page.get("/schedules")
    assert "&lt;report&gt;" in answer.text
    assert "secret" not in answer.text
    assert "&lt;report&gt;" in (await page.get("/queue?at=events:clicks")).text


async def test_what_the_doctor_finds_is_said_in_words(open_page: OpenPage, client: Client) -> None:
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create()
    await orders.pause()
    page = await open_page("orders")
    await shown(page, 1)
    answer = await page.get("/queue/doctor?at=orders")
    assert "healthy" in answer.text
    assert "paused" in answer.text


async def test_a_queue_that_is_not_watched_is_not_found(open_page: OpenPage, client: Client, url: str) -> None:
    await AsyncQueue("orders", client=client).create()
    await AsyncQueue("others", client=client).create()
    page = await open_page("orders")
    await shown(page, 1)
    for at in ("others", "", "events:orders", f"{url}/orders", "redis://127.0.0.1:1/0/orders", "events:", "%00"):
        answer = await page.get("/queue", params={"at": at})
        assert answer.status_code == 404, at
    assert (await page.get("/queue?at=orders&server=elsewhere")).status_code == 404
    assert (await page.get("/nonsense")).status_code == 404


async def test_of_several_servers_the_links_name_the_server(
    open_page: OpenPage, client: Client, url: str, make_server: Any
) -> None:
    other = with_password(make_server(config={"requirepass": "very-secret"}))
    async with Client(other) as elsewhere:
        for each, bound in ((client, 1), (elsewhere, 2)):
            await AsyncQueue("orders", client=each).create(bound=bound)
    page = await open_page("orders", f"{other}/orders")
    rows = await shown(page, 2)
    overview = await page.get("/")
    assert "very-secret" not in overview.text
    assert "very-secret" not in str(rows)
    ours = links(overview, "/queue?")
    assert len(set(ours)) == 2
    assert {(await page.get(f"{link}&format=json")).json()["bound"] for link in ours} == {1, 2}


async def test_a_server_that_is_down_is_told_and_the_page_comes_back(
    open_page: OpenPage, make_server: Any, tmp_path: Path
) -> None:
    own = make_server(directory=tmp_path, config={"requirepass": "very-secret"})
    async with Client(with_password(own)) as client:
        await AsyncQueue("orders", client=client).create()
    page = await open_page("orders", url=with_password(own))
    await until(page, "/queue?at=orders&format=json", lambda found: found["state"] == "open")
    port = own.port
    own.stop()
    found = await until(page, "/queue?at=orders&format=json", lambda found: found["state"] == "unreadable")
    assert "very-secret" not in str(found)
    for view in ("", "/letters", "/doctor"):
        answer = await page.get(f"/queue{view}?at=orders")
        assert answer.status_code in (200, 503, 504)
        assert "very-secret" not in answer.text
    make_server(directory=tmp_path, config={"requirepass": "very-secret"}, port=port)
    await until(page, "/queue?at=orders&format=json", lambda found: found["state"] in ("open", "missing"))
