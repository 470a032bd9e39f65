"""Messages that operators edit and put again, and tasks that they cancel."""

from __future__ import annotations

import html
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from apressure import AsyncQueue, Client, EventQueue, FileQueue, QueueEmptyError, TaskQueue
from apressure.web.bodies import READ
from tests.integration.web.conftest import OpenPage, shown, until
from tests.integration.web.test_actions import act, do

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]


def copies(answer: httpx.Response) -> list[str]:
    """The links to forms with copies."""
    return [html.unescape(link) for link in re.findall(r'href="([^"]*what=copy[^"]*)"', answer.text)]


def contents(answer: httpx.Response) -> tuple[str, str]:
    """What a form has: the message, and how it is written."""
    (item,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", answer.text, re.DOTALL)
    written = re.findall(r"<option value=\"(\w+)\" selected>", answer.text)
    return html.unescape(item), "".join(written)


async def test_a_dead_letter_is_edited_and_put_into_another_queue(
    open_page: OpenPage, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apressure")
    clicks, orders = EventQueue[bytes]("clicks", client=client, max_attempts=1), AsyncQueue("orders", client=client)
    await clicks.create()
    await orders.create()
    odd = (b"\n<b>first\n ", b"tab\t", b"two\r\nlines", b"\xff\x00", b"x" * (READ + 1))
    await clicks.put_many(odd)
    for _ in odd:
        await (await clicks.receive()).nack("bad")
    with pytest.raises(QueueEmptyError):
        await clicks.receive(timeout=0)
    page = await open_page("events:clicks", "orders", allow_actions=True, show_bodies=True)
    await shown(page, 2)
    links = copies(await page.get("/queue/letters?at=events:clicks"))
    assert len(links) == 5
    forms = [contents(await page.get(link)) for link in links[:4]]
    assert forms[0] == ("\n<b>first\n ", "text")
    assert [(written, bytes.fromhex(item)) for item, written in forms[1:]] == [("hex", raw) for raw in odd[1:4]]
    assert "cannot be edited" in (await page.get(links[4])).text
    typed = {"item": forms[0][0].replace("first", "second").replace("\n", "\r\n"), "format": "text"}
    said = await do(page, links[0], queue="orders", **typed)
    assert "was put into orders" in said.text
    assert await orders.get() == b"\n<b>second\n "
    await do(page, links[3], item="ff 01", format="hex", queue="")
    assert await clicks.get() == b"\xff\x01"
    for wrong in ({"item": "f", "format": "hex"}, {"item": "x", "queue": "none"}, {"item": "x", "queue": "files:/etc"}):
        answer = await do(page, links[0], **wrong)
        assert answer.status_code == 409
        assert contents(answer)[0] == wrong["item"]  # what was typed is still there
    assert len(await clicks.dead_letters()) == 5
    assert await clicks.qsize() == await orders.qsize() == 0
    (first, *_) = (one for one in caplog.records if getattr(one, "event", "") == "changed_by_hand")
    assert "copy events:clicks" in first.getMessage()
    assert "second" not in caplog.text
    (letter, *_) = await clicks.dead_letters()
    await clicks.discard([letter])
    assert (await page.get(links[0])).status_code == 404


@pytest.mark.parametrize("kind", ["AsyncQueue", "EventQueue", "TaskQueue", "FileQueue"])
async def test_a_message_that_waits_is_edited(open_page: OpenPage, client: Client, tmp_path: Path, kind: str) -> None:
    made: dict[str, tuple[str, Any]] = {
        "AsyncQueue": ("orders", AsyncQueue("orders", client=client)),
        "EventQueue": ("events:orders", EventQueue("orders", client=client)),
        "TaskQueue": ("tasks:orders", TaskQueue("orders", client=client, codec="raw")),
        "FileQueue": (f"files:{tmp_path}/orders", FileQueue(tmp_path / "orders")),
    }
    at, queue = made[kind]
    async with queue:
        await queue.create()
        await queue.put_many([b"1", b"2", b"3"])
        await queue.put(b"later", delay=3600)
        page = await open_page(at, allow_actions=True, show_bodies=True)
        await shown(page, 1)
        for more, items in (("", "123"), ("&newest=1", "321"), ("&place=delayed", ["later"])):
            answer = await page.get(f"/queue/messages?at={at}{more}")
            assert [contents(await page.get(link))[0] for link in copies(answer)] == list(items)
        second = copies(await page.get(f"/queue/messages?at={at}"))[1]
        assert "was put" in (await do(page, second, item="2 again", format="text")).text
        assert [one.raw for one in (await queue.browse()).messages] == [b"1", b"2", b"3", b"2 again"]
        if kind != "AsyncQueue":  # its messages have no ids
            await queue.get()
            assert (await page.get(second)).status_code == 404
        assert (await page.get(act("copy", at, place="nowhere"))).status_code == 404
        assert (await page.get(act("copy", at, place="waiting", cursor="x"))).status_code == 404


async def test_hidden_messages_are_not_edited(open_page: OpenPage, client: Client) -> None:
    queue = EventQueue[bytes]("clicks", client=client)
    await queue.put(b"secret")
    for options in ({}, {"show_bodies": True, "redact": ["/card"]}):
        page = await open_page("events:clicks", allow_actions=True, **options)
        await shown(page, 1)
        answer = await page.get("/queue/messages?at=events:clicks")
        assert copies(answer) == []
        (message,) = (await queue.browse()).messages
        hidden = await page.get(act("copy", id=message.id or "", place="waiting"))
        assert hidden.status_code == 404
        assert "secret" not in hidden.text


@pytest.mark.slow  # a new queue is found after half a minute
async def test_a_task_is_cancelled(open_page: OpenPage, client: Client) -> None:
    queue = TaskQueue[Any]("reports", client=client)
    await queue.create()
    task_id = await queue.put({"a": 1})
    await queue.put({"a": 2})
    page = await open_page("tasks:reports", "events:*", allow_actions=True)
    await shown(page, 1)
    answer = await page.get("/queue/tasks?at=tasks:reports")
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*what=cancel[^"]*)"', answer.text)]
    assert len(links) == 2
    one = next(link for link in links if task_id in link)
    assert f"Cancel the task {task_id}" in (await page.get(one)).text
    assert (await queue.statistics()).length == 2
    assert "It has failed now" in (await do(page, one)).text
    assert (await until(page, "/queue/tasks?at=tasks:reports&status=failed&format=json", lambda found: found["tasks"]))[
        "tasks"
    ][0]["error"] == "cancelled"
    again = await do(page, one)
    assert again.status_code == 409
    assert task_id in again.text
    assert (await do(page, act("cancel", "tasks:reports", id="none"))).status_code == 409
    delivery = await queue.receive()
    assert "was asked" in (await do(page, act("cancel", "tasks:reports", id=delivery.task.id))).text
    await delivery.nack()
    await EventQueue[bytes]("clicks", client=client).create()
    await shown(page, 2)
    assert (await page.get(act("cancel", id="x"))).status_code == 404


async def test_delayed_messages_are_promoted(open_page: OpenPage, client: Client) -> None:
    queue, orders = EventQueue[bytes]("clicks", client=client), AsyncQueue[bytes]("orders", client=client)
    for one in (queue, orders):
        await one.create()
        await one.put_many([b"1", b"2", b"3"], delay=3600)
    page = await open_page("events:clicks", "orders", allow_actions=True)
    await shown(page, 2)
    answer = await page.get("/queue/messages?at=events:clicks&place=delayed")
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*what=promote[^"]*)"', answer.text)]
    assert len(links) == 4  # all, and each
    assert "Make the delayed message" in (await page.get(links[2])).text
    assert await queue.qsize() == 0
    assert "1 are due now" in (await do(page, links[2])).text
    assert "0 are due now" in (await do(page, links[2])).text
    assert await queue.get() == b"2"
    assert "Make all 2 delayed messages" in (await page.get(links[0])).text
    assert "2 are due now" in (await do(page, links[0])).text
    assert await queue.get_many(9) == [b"1", b"3"]
    answer = await page.get("/queue/messages?at=orders&place=delayed")
    assert len(re.findall(r"what=promote", answer.text)) == 1  # its messages have no ids
    assert (await do(page, act("promote", "orders", id="none"))).status_code == 501
    assert "3 are due now" in (await do(page, act("promote", "orders"))).text
    assert await orders.get_many(9) == [b"1", b"2", b"3"]
