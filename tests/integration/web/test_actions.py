"""What operators change on the page: each action with its question, who may, and what the log says."""

from __future__ import annotations

import asyncio
import html
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from apressure import AsyncQueue, Client, EventQueue, FileQueue, TaskQueue, recovery, serve
from apressure.core.limits import KeyLimit
from apressure.web.actions import ACTIONS
from apressure.web.rendering import url_of
from tests.integration.web.conftest import OpenPage, shown, until
from tests.integration.web.test_security import OPERATOR, TOKENS, VIEWER, csrf

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]


HOLDER = "<i>web-1:77"


def act(what: str, at: str = "events:clicks", **more: str) -> str:
    return url_of("", "queue/act", at=at, what=what, **more)


async def do(page: httpx.AsyncClient, where: str, **typed: str) -> httpx.Response:
    """Ask for the form of an action, and send it."""
    asked = await page.get(where)
    assert asked.status_code == 200, asked.text
    hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.text)
    return await page.post(where, data={**dict(hidden), **typed})


@pytest.fixture
async def clicks(client: Client) -> EventQueue[bytes]:
    queue = EventQueue[bytes]("clicks", client=client, max_attempts=1)
    await queue.create()
    await queue.put_many([b"1", b"2", b"3"])
    return queue


async def test_each_action_does_what_it_says(
    open_page: OpenPage, clicks: EventQueue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    caplog.set_level(logging.INFO, logger="apressure")
    assert "3 wait" in (await page.get(act("pause"))).text
    assert not await clicks.paused()  # only the form does it
    assert "It is paused" in (await do(page, act("pause"))).text
    assert await clicks.paused()
    assert "already" in (await do(page, act("pause"))).text
    assert "It is resumed" in (await do(page, act("resume"))).text
    assert not await clicks.paused()
    assert "7,200" in (await do(page, act("rate"), count="7200", per="60", burst="5")).text
    assert str((await clicks.limits()).rate) == "7,200 in 60 s with bursts of 5"
    assert "Now: at most 7,200 in 60 s with bursts of 5" in (await page.get(act("rate"))).text
    await do(page, act("rate"))
    await do(page, act("concurrency"), most="5")
    await do(page, act("hold"), seconds="3600")
    limits = await clicks.limits()
    assert (limits.rate, limits.concurrency, limits.held_for > 3000) == (None, 5, True)
    await do(page, act("concurrency"))
    await do(page, act("hold"), seconds="0")
    assert "the bound is none" in (await page.get(act("bound"))).text
    assert "At most 1,000 may wait" in (await do(page, act("bound"), most="1000")).text
    assert await clicks.bound() == 1000
    assert "Any number" in (await do(page, act("bound"))).text
    assert await clicks.bound() == 0
    assert await clicks.qsize() == 3
    await do(page, act("put"), item="<ü>\r\nx")
    assert (await clicks.peek_newest()) == "<ü>\nx".encode()
    assert "4 messages" in (await page.get(act("purge"))).text
    assert "4 deleted" in (await do(page, act("purge"))).text
    assert await clicks.qsize() == 0
    assert "It is closed" in (await do(page, act("close"))).text
    assert (await do(page, act("close"))).status_code == 409
    assert (await do(page, act("put"), item="x")).status_code == 409
    wrong = await do(page, act("delete"), name="clicks")
    assert wrong.status_code == 409
    assert "Nothing was deleted" in wrong.text
    assert "It is deleted" in (await do(page, act("delete"), name="events:clicks")).text
    assert not await clicks.exists()
    noted = [one for one in caplog.records if getattr(one, "event", "") == "changed_by_hand"]
    assert [one.operation for one in noted] == [  # type: ignore[attr-defined]
        "pause", "pause", "resume", "rate", "rate", "concurrency", "hold", "concurrency", "hold", "bound", "bound",
        "put", "purge", "close", "close", "put", "delete", "delete",
    ]  # fmt: skip
    assert {(one.queue, one.who) for one in noted} == {("clicks", "local")}  # type: ignore[attr-defined]
    assert "<ü>" not in caplog.text


async def test_dead_letters_are_moved_back_one_or_all(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    for _ in range(3):
        await (await clicks.receive()).nack(ValueError("bad"))
    await clicks.put(b"4")
    assert await clicks.get() == b"4"  # the others are dead letters now
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    letters = await page.get("/queue/letters?at=events:clicks")
    ours = [html.unescape(link) for link in re.findall(r'href="([^"]*what=requeue[^"]*)"', letters.text)]
    assert len(ours) == 4
    one = next(link for link in ours if "id=" in link)
    assert "1 moved back" in (await do(page, one)).text
    assert len(await clicks.dead_letters()) == 2
    assert "no such dead letter" in (await do(page, one)).text
    assert "Move 2 dead letters" in (await page.get(act("requeue"))).text
    assert "has begun" in (await do(page, act("requeue"))).text
    (job,) = (await until(page, "/jobs?format=json", lambda found: found["jobs"][0]["state"] == "done"))["jobs"]
    assert (job["done"], job["gone"], job["who"], job["search"]) == (2, 0, "local", "all")
    assert await clicks.qsize() == 3


async def test_a_worker_is_drained(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    async def handle(_: bytes) -> None: ...

    serving = asyncio.ensure_future(serve(handle, clicks))
    page = await open_page("events:clicks", allow_actions=True)
    await until(page, "/workers?format=json", lambda found: found["workers"])
    workers = await page.get("/workers")
    (link,) = (html.unescape(one) for one in re.findall(r'href="([^"]*what=drain[^"]*)"', workers.text))
    assert "It drains" in (await do(page, link)).text
    async with asyncio.timeout(60):
        await serving
    assert "can be drained" in (await do(page, act("drain", id="nobody"))).text


async def test_a_worker_tells_its_stack(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    async def wait_for_the_bank(_: bytes) -> None:
        await asyncio.Event().wait()

    serving = asyncio.ensure_future(serve(wait_for_the_bank, clicks))
    page = await open_page("events:clicks", allow_actions=True)
    await until(page, "/workers?format=json", lambda found: found["workers"])
    workers = await page.get("/workers")
    (link,) = (html.unescape(one) for one in re.findall(r'href="([^"]*what=stack[^"]*)"', workers.text))
    assert "It tells its stack" in (await do(page, link)).text
    await until(page, "/workers?format=json", lambda found: found["workers"] and found["workers"][0]["stack"])
    assert "wait_for_the_bank" in (await page.get("/workers")).text
    assert "can tell its stack" in (await do(page, act("stack", id="nobody"))).text
    serving.cancel()
    await asyncio.wait((serving,))


async def test_only_operators_may_change_queues(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True, tokens=TOKENS)
    viewer, operator = {"authorization": f"Bearer {VIEWER}"}, {"authorization": f"Bearer {OPERATOR}"}
    await until_seen(page, operator)
    for what in ACTIONS:
        assert (await page.get(act(what))).status_code == 401
        assert (await page.post(act(what))).status_code == 401
        assert (await page.get(act(what), headers=viewer)).status_code == 403
        assert (await page.post(act(what), headers=viewer)).status_code == 403
    assert "what=pause" not in (await page.get("/queue?at=events:clicks", headers=viewer)).text
    assert "what=pause" in (await page.get("/queue?at=events:clicks", headers=operator)).text
    # A program sends its token itself: no other site can have a browser do that.
    assert (await page.post(act("pause"), headers=operator)).status_code == 200
    assert await clicks.paused()
    # A browser repeats the password of basic authentication by itself.
    assert (await page.post(act("resume"), auth=("ann", OPERATOR))).status_code == 403
    assert await clicks.paused()
    form = await page.get(act("resume"), auth=("ann", OPERATOR))
    other = await page.post(act("resume"), data={"csrf": csrf(form)}, auth=("bob", OPERATOR))
    assert other.status_code == 403
    cross = {"sec-fetch-site": "cross-site"}
    assert (
        await page.post(act("resume"), data={"csrf": csrf(form)}, auth=("ann", OPERATOR), headers=cross)
    ).status_code == 403
    assert await clicks.paused()
    assert (await page.post(act("resume"), data={"csrf": csrf(form)}, auth=("ann", OPERATOR))).status_code == 200
    assert not await clicks.paused()


async def until_seen(page: httpx.AsyncClient, headers: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while (await page.get("/queue?at=events:clicks", headers=headers)).status_code != 200:
            await asyncio.sleep(0.02)


async def test_without_the_option_there_are_no_actions(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks")
    await shown(page, 1)
    for what in ACTIONS:
        assert (await page.get(act(what))).status_code == 404
        assert (await page.post(act(what))).status_code in (404, 405)
    assert "queue/act" not in (await page.get("/queue?at=events:clicks")).text


async def test_forms_without_their_token_do_nothing(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    for what in ACTIONS:
        for data in ({}, {"csrf": "0" * 64}, {"csrf": ""}):
            assert (await page.post(act(what), data={"name": "events:clicks", "item": "x", **data})).status_code == 403
    assert await clicks.qsize() == 3


@pytest.mark.parametrize(
    ("what", "typed"),
    [
        ("hold", {"seconds": "x"}), ("hold", {"seconds": "-1"}), ("hold", {"seconds": "nan"}),
        ("hold", {"seconds": "1e999"}), ("rate", {"count": "0"}), ("rate", {"count": "1e30"}),
        ("rate", {"count": "inf"}), ("concurrency", {"most": "nan"}), ("delete", {}), ("hold", {}),
        ("bound", {"most": "1.5"}), ("bound", {"most": "9" * 15}),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_said(
    open_page: OpenPage, clicks: EventQueue[bytes], what: str, typed: dict[str, str]
) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    answer = await do(page, act(what), **typed)
    assert answer.status_code == 409
    assert 'role="alert"' in answer.text
    assert await clicks.qsize() == 3


async def test_keys_are_limited(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    done = await do(page, act("key"), most="3", pointer=" /customer/id ", order="turns")
    assert "(/customer/id), in turns" in done.text
    assert (await clicks.limits()).key == KeyLimit(3, "/customer/id")
    assert "at most 3 of a key (/customer/id)" in (await page.get(act("key"))).text
    where = "/queue?at=events:clicks&format=json"
    await until(page, where, lambda found: "at most 3 of a key" in found["limits_text"])
    await do(page, act("key"), most="", pointer="", order="first")
    assert (await clicks.limits()).key is None  # any number, and what came first
    await do(page, act("key"), most="1", order="first")
    assert (await clicks.limits()).key == KeyLimit(1, None, fair=False)
    for typed in ({"order": "x"}, {"order": "turns", "pointer": "customer"}, {"order": "turns", "most": "0"}):
        assert (await do(page, act("key"), **typed)).status_code == 409
    assert (await clicks.limits()).key == KeyLimit(1, None, fair=False)
    await do(page, act("key"), most="1", order="off")
    assert (await clicks.limits()).key is None


async def test_faults_are_repaired_and_it_is_said_before_which(
    open_page: OpenPage, client: Client, db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apressure")
    orders, key = AsyncQueue[bytes]("orders", client=client), "__pressure__:orders"
    await orders.create(bound=2)
    await orders.put(b"1")
    page = await open_page("orders", allow_actions=True)
    await shown(page, 1)
    assert "nothing at orders that this can repair" in (await page.get(act("repair", "orders"))).text
    assert "what=repair" not in (await page.get("/queue/doctor?at=orders")).text
    db.set(f"{key}:stats:produced_bytes", "many")
    db.delete(f"{key}:consumer_free")
    db.set(f"{key}:consumer", HOLDER)
    doctor = await page.get("/queue/doctor?at=orders")
    give_back, repair = (html.unescape(one) for one in re.findall(r'href="([^"]*queue/act[^"]*)"', doctor.text))
    assert "every put fails" in (await page.get(f"{repair}&format=json")).json()["question"]
    assert db.get(f"{key}:stats:produced_bytes") == b"many"
    done = await do(page, repair)
    assert "to 0; it was &#39;many&#39;" in done.text
    assert "gave back" not in done.text
    asked = await page.get(give_back)
    assert "The consumer role is taken" in asked.text
    assert "<i>" not in asked.text
    wrong = await do(page, give_back, name="web-1")
    assert (wrong.status_code, db.exists(f"{key}:consumer_free")) == (409, 0)
    assert "gave back the consumer role" in (await do(page, give_back, name=HOLDER)).text
    assert "has no role" in (await page.get(give_back)).text
    assert (await recovery.examine(orders)).healthy
    assert await orders.get() == b"1"
    noted = [getattr(one, "operation", "") for one in caplog.records if getattr(one, "event", "") == "changed_by_hand"]
    assert noted == ["repair", "give_back", "give_back"]


async def test_a_kind_has_the_actions_that_it_can_do(open_page: OpenPage, client: Client, tmp_path: Path) -> None:
    async with FileQueue("spool", directory=tmp_path) as files:
        await files.put(b"x")
    await AsyncQueue("orders", client=client).create()
    page = await open_page("orders", f"files:{tmp_path}/spool", allow_actions=True)
    await shown(page, 2)
    for at, missing in (("orders", {"key"}), (f"files:{tmp_path}/spool", {"key", "rate", "hold", "concurrency"})):
        shown_there = set(re.findall(r"what=(\w+)", (await page.get("/queue", params={"at": at})).text))
        assert {what for what, action in ACTIONS.items() if action.listed} - shown_there == missing
        for what in missing:
            assert (await page.get(act(what, at))).status_code == 404
            token = csrf(await page.get(act("pause", at)))
            assert (await page.post(act(what, at), data={"csrf": token, "seconds": "9"})).status_code == 404


@pytest.mark.parametrize("kind", [AsyncQueue, TaskQueue])
async def test_other_kinds_have_the_same_actions(open_page: OpenPage, client: Client, kind: type[Any]) -> None:
    queue = kind("<jobs>", client=client)
    await queue.create(**({"bound": 1} if kind is AsyncQueue else {}))
    at = "<jobs>" if kind is AsyncQueue else "tasks:<jobs>"
    page = await open_page(at, allow_actions=True)
    await shown(page, 1)
    for what in ("pause", "resume", "concurrency", "requeue"):
        answer = await do(page, act(what, at))
        assert answer.status_code == 200, answer.text
        assert "<jobs>" not in answer.text
    assert (await do(page, act("put", at), item="1")).status_code == 200
    if kind is AsyncQueue:
        full = await do(page, act("put", at), item="2")
        assert full.status_code == 409
    assert "1 deleted" in (await do(page, act("purge", at))).text
    assert (await do(page, act("delete", at), name=at)).status_code == 200
    assert not await queue.exists()


async def test_a_queue_with_a_name_that_nobody_can_type_is_deleted(open_page: OpenPage, client: Client) -> None:
    queue = EventQueue[bytes]("\udcff\x00'", client=client)
    await queue.create()
    page = await open_page("events:*", allow_actions=True)
    await shown(page, 1)
    where = act("delete", "events:\udcff\x00'")
    assert (await do(page, where, name="events:\\udcff\\x00'")).status_code == 200
    assert not await queue.exists()
