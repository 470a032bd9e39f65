"""Dead letters on the page: searched, and requeued or deleted by jobs that go on by themselves."""

from __future__ import annotations

import asyncio
import html
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import apressure.web
from apressure import AsyncQueue, Client, DeadLetterSearch, EventQueue, FileQueue, QueueEmptyError
from apressure.embedded import EmbeddedServer
from apressure.monitor import bulk
from apressure.web import jobs
from apressure.web.rendering import url_of
from tests.integration.conftest import in_time
from tests.integration.web.conftest import OpenPage, shown, until
from tests.integration.web.test_actions import act, do
from tests.integration.web.test_security import OPERATOR, TOKENS, VIEWER, csrf

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

ERRORS = (ValueError("<too> large"), KeyError("x"))


@pytest.fixture
async def clicks(client: Client) -> EventQueue[bytes]:
    """A queue with six dead letters for two reasons, in turn."""
    queue = EventQueue[bytes]("clicks", client=client, max_attempts=1)
    await queue.create()
    await bury(queue, [b"secret-%d" % number for number in range(6)])
    return queue


async def bury(queue: Any, items: Sequence[bytes]) -> None:
    await queue.put_many(items)
    for number in range(len(items)):
        await (await queue.receive()).nack(ERRORS[number % 2])
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


def letters(at: str = "events:clicks", **more: object) -> str:
    return url_of("", "queue/letters", at=at, format="json", **more)


async def ended(page: httpx.AsyncClient, number: int = 1, **headers: str) -> list[dict[str, Any]]:
    """Wait until so many jobs have ended; return them, the latest first."""

    def all_ended(found: Any) -> bool:
        return len(found["jobs"]) == number and all(job["state"] != "running" for job in found["jobs"])

    jobs_: list[dict[str, Any]] = (await until(page, "/jobs?format=json", all_ended, headers))["jobs"]
    return jobs_


async def test_they_are_searched_in_steps(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", show_bodies=True)
    await shown(page, 1)
    every = (await page.get(letters())).json()
    assert (every["found"], every["looked"], every["total"], every["cursor"]) == (6, 6, 6, None)
    found = (await page.get(letters(error="TOO"))).json()
    assert (found["found"], [group["error"] for group in found["groups"]]) == (3, ["ValueError: <too> large"])
    found = (await page.get(letters(error="large", limit=2))).json()
    assert (found["found"], found["looked"], found["more"]) == (1, 2, True)
    link = html.unescape(
        re.findall(
            r'rel="next" href="([^"]+)"',
            (await page.get(letters(error="large", limit=2).replace("&format=json", ""))).text,
        )[0]
    )
    second = (await page.get(f"{link}&format=json")).json()
    assert (second["passed"], second["search"]) == (2, {"error": "large"})
    assert second["groups"][0]["letters"][0]["id"] != found["groups"][0]["letters"][0]["id"]
    (group,) = (await page.get(letters(text="secret-3"))).json()["groups"]
    assert group["count"] == 1
    one = group["letters"][0]["id"]
    assert (await page.get(letters(id=one))).json()["found"] == 1
    assert (await page.get(letters(since="2100-01-01T00:00"))).json()["found"] == 0
    assert (await page.get(letters(until="2100-01-01T00:00:00"))).json()["found"] == 6
    for wrong in ({"since": "<b>soon"}, {"cursor": "x"}):
        answer = await page.get(url_of("", "queue/letters", at="events:clicks", **wrong))
        assert answer.status_code == 404
        assert "<b>" not in answer.text


async def test_hidden_messages_are_not_searched_for_a_text(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    for options in ({}, {"show_bodies": True, "redact": ["/card"]}):
        page = await open_page("events:clicks", allow_actions=True, **options)
        await shown(page, 1)
        assert (await page.get(letters(text="secret"))).status_code == 404
        assert (await page.get(act("discard", text="secret"))).status_code == 404
        assert (await page.post(act("discard", text="secret"))).status_code == 403
        assert 'name="text"' not in (await page.get("/queue/letters?at=events:clicks")).text
    assert len(await clicks.dead_letters()) == 6


async def test_all_that_fit_are_requeued_or_deleted(
    open_page: OpenPage, clicks: EventQueue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apressure")
    page = await open_page("events:clicks", allow_actions=True, show_bodies=True)
    await shown(page, 1)
    asked = (await page.get(act("requeue", error="large"))).text
    assert "Move 3 dead letters" in asked
    assert "has begun" in (await do(page, act("requeue", error="large"), rate="1000")).text
    (job,) = await ended(page)
    assert (job["state"], job["done"], job["gone"], job["total"], job["rate"]) == ("done", 3, 0, 6, 1000)
    assert await clicks.get_many(9) == [b"secret-0", b"secret-2", b"secret-4"]
    assert "Delete 1 dead letters" in (await page.get(act("discard", text="secret-3"))).text
    await do(page, act("discard", text="secret-3"))
    assert (await ended(page, 2))[0]["done"] == 1
    assert [letter.item for letter in await clicks.dead_letters()] == [b"secret-1", b"secret-5"]
    for rate in ("0", "-1", "nan", "x", "inf"):
        assert (await do(page, act("discard"), rate=rate)).status_code == 409
    assert len(await clicks.dead_letters()) == 2
    said = [one for one in caplog.records if getattr(one, "event", "") in ("changed_by_hand", "job_ended")]
    assert [(one.event, one.operation) for one in said[:4]] == [  # type: ignore[attr-defined]
        ("changed_by_hand", "requeue"), ("job_ended", "requeue"),
        ("changed_by_hand", "discard"), ("job_ended", "discard"),
    ]  # fmt: skip
    assert "secret" not in caplog.text


async def test_they_move_into_another_queue(
    open_page: OpenPage, clicks: EventQueue[bytes], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="apressure")
    late = AsyncQueue[bytes]("late", client=client)
    await late.create()
    page = await open_page("events:clicks", "late", allow_actions=True)
    await shown(page, 2)
    assert "Move 3 dead letters" in (asked := (await page.get(act("move", error="large"))).text)
    assert 'name="queue"' in asked
    assert "has begun" in (await do(page, act("move", error="large"), queue="late", rate="1000")).text
    (job,) = await ended(page)
    assert (job["work"], job["to"], job["state"], job["done"], job["gone"]) == ("move", "late", "done", 3, 0)
    assert "move to late" in (await page.get("/jobs")).text
    assert await late.get_many(9) == [b"secret-0", b"secret-2", b"secret-4"]
    form = await page.get("/queue/letters?at=events:clicks")
    link = html.unescape(re.findall(r'href="([^"]*what=move&amp;id=[^"]*)"', form.text)[0])
    assert 'name="rate"' not in (one := (await page.get(link)).text)
    assert 'name="queue"' in one
    assert "1 moved." in (await do(page, link, queue="late")).text
    assert "no such dead letter" in (await do(page, link, queue="late")).text
    assert await late.get_many(9) == [b"secret-1"]
    handle = re.findall(r'name="letter" value="([^"]+)"', form.text)[1]
    await page.post(act("move"), data={"csrf": csrf(form), "letter": handle, "queue": "late"})
    assert (await ended(page, 2))[0]["done"] == 1
    assert await late.get_many(9) == [b"secret-3"]
    for wrong in ("", "orders", "events:clicks", "<b>"):
        assert (await do(page, act("move"), queue=wrong)).status_code == 409
    assert [letter.item for letter in await clicks.dead_letters()] == [b"secret-5"]
    assert {getattr(one, "operation", "move") for one in caplog.records} == {"move"}


async def test_one_whose_id_is_in_use_stays_and_the_page_says_why(
    open_page: OpenPage, clicks: EventQueue[bytes], client: Client
) -> None:
    letters = await clicks.dead_letters()
    await EventQueue[bytes]("busy", client=client).put(b"new", id=letters[0].id)
    page = await open_page("events:clicks", "events:busy", allow_actions=True)
    await shown(page, 2)
    answer = await do(page, await _first(page, "move", "events:clicks"), queue="events:busy")
    assert "Nothing was moved: there is no such dead letter any more, or the other queue has" in answer.text
    assert await clicks.dead_letters() == letters


@pytest.mark.parametrize("what", ["move", "copy"])
async def test_the_url_of_another_queue_counts(
    open_page: OpenPage, clicks: EventQueue[bytes], url: str, make_server: Callable[..., EmbeddedServer],
    tmp_path: Path, what: str,
) -> None:  # fmt: skip
    """With a server that is not watched, nothing is put; without one, that of the queue itself is meant."""
    other = make_server().url
    async with (
        AsyncQueue[bytes]("late", url=url) as here, AsyncQueue[bytes]("late", url=other) as there,
        FileQueue[bytes](tmp_path / "late") as file, FileQueue[bytes](tmp_path / "spool", max_attempts=1) as spool,
    ):  # fmt: skip
        for one in (here, there, file, spool):
            await one.create()
        await bury(spool, [b"spooled"])
        page = await open_page("events:clicks", "late", allow_actions=True, show_bodies=True)
        await shown(page, 2)
        link = await _first(page, what, "events:clicks")
        for wrong in (f"{other}/late", "redis://127.0.0.1:1/0/late", "redis://host:x/0/late", "okq://127.0.0.1:1/late"):
            answer = await do(page, link, queue=wrong, item="1", format="text")
            assert answer.status_code == 409
            assert "does not watch this queue. Nothing was put" in answer.text
        both = await open_page(
            "events:clicks", "late", f"{other}/late", f"files:{tmp_path}/*", allow_actions=True, show_bodies=True
        )
        await shown(both, 6)  # and spool.dead
        targets = [("late", here), (f"{url}/late", here), (f"{other}/late", there), (f"files:{tmp_path}/late", file)]
        for typed, target in targets:
            link = await _first(both, what, "events:clicks")
            assert (await do(both, link, queue=typed, item="1", format="text")).status_code == 200
            assert [await one.qsize() for one in (here, there, file) if one is not target] == [0, 0]
            assert await in_time(target.get()) in (b"1", *(b"secret-%d" % number for number in range(6)))
        link = await _first(both, what, f"files:{tmp_path}/spool")
        answer = await do(both, link, queue="late", item="1", format="text")
        assert answer.status_code == 409
        assert "several servers" in answer.text
        assert (await do(both, link, queue=f"{other}/late", item="1", format="text")).status_code == 200
        assert await there.qsize() == 1


async def _first(page: httpx.AsyncClient, what: str, at: str) -> str:
    """The link to an action on the first dead letter."""
    answer = await page.get(url_of("", "queue/letters", at=at))
    return html.unescape(re.findall(rf'href="([^"]*what={what}&amp;id=[^"]*)"', answer.text)[0])


async def test_those_that_were_chosen_are_requeued_or_deleted(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    odd = "a%41&\n\udcff<"  # an id may be anything
    await clicks.put(b"odd", id=odd)
    await (await clicks.receive()).nack("odd")
    with pytest.raises(QueueEmptyError):
        await clicks.receive(timeout=0)
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    form = await page.get("/queue/letters?at=events:clicks")
    handles = re.findall(r'name="letter" value="([^"]+)"', form.text)
    assert len(handles) == 7
    nothing = await page.post(act("discard"), data={"csrf": csrf(form), "step": "ask"})
    assert nothing.status_code == 409
    assert "Nothing is chosen" in nothing.text
    first = {"csrf": csrf(form), "step": "ask", "letter": [handles[0], handles[-1], "none"]}
    asked = await page.post(act("requeue"), data=first)
    assert "Move the 3 chosen dead letters" in asked.text
    assert len(await clicks.dead_letters()) == 7
    assert (await page.post(act("requeue"), data={**first, "csrf": "0"})).status_code == 403
    again = re.findall(r'name="letter" value="([^"]+)"', asked.text)
    assert "has begun" in (await page.post(act("requeue"), data={"csrf": csrf(asked), "letter": again})).text
    (job,) = await ended(page)
    assert (job["done"], job["gone"], job["search"]) == (2, 1, "3 chosen ones")
    assert len(await clicks.dead_letters()) == 5
    assert await clicks.qsize() == 2
    left = [letter.id for letter in await clicks.dead_letters()]
    by_id = [quote(one, safe="", errors="surrogateescape") for one in (odd, left[0])]  # as programs name them
    assert "has begun" in (await page.post(act("discard"), data={"csrf": csrf(form), "chosen": by_id})).text
    assert (await ended(page, 2))[0]["search"] == "2 chosen ones"
    assert odd not in [letter.id for letter in await clicks.dead_letters()]
    assert (await clicks.dead_letters())[0].id == left[1]


async def test_one_of_several_with_an_id_is_acted_on(open_page: OpenPage, client: Client) -> None:
    queue = EventQueue[bytes]("clicks", client=client, max_attempts=1)
    await queue.create()
    for item in (b"oldest", b"older", b"old", b"new"):  # the id is used again
        await queue.put(item, id="order-7")
        await (await queue.receive()).nack("bad")
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
    page = await open_page("events:clicks", allow_actions=True, show_bodies=True)
    await shown(page, 1)
    form = await page.get("/queue/letters?at=events:clicks")
    handles = re.findall(r'name="letter" value="([^"]+)"', form.text)
    links = {
        what: [html.unescape(link) for link in re.findall(rf'href="([^"]*what={what}&amp;id=[^"]*)"', form.text)]
        for what in ("copy", "requeue", "discard")
    }
    assert len(set(handles)) == len(links["copy"]) == 4
    for link, item in zip(links["copy"], ("oldest", "older", "old", "new"), strict=True):
        assert f">\n{item}</textarea>" in (await page.get(link)).text
    assert "1 deleted" in (await do(page, links["discard"][3])).text
    assert [letter.item for letter in await queue.dead_letters()] == [b"oldest", b"older", b"old"]
    assert "no such dead letter" in (await do(page, links["discard"][3])).text
    assert "1 moved back" in (await do(page, links["requeue"][1])).text
    assert await queue.get() == b"older"
    asked = await page.post(act("discard"), data={"csrf": csrf(form), "step": "ask", "letter": handles[2]})
    assert "Delete the 1 chosen dead letters" in asked.text
    await page.post(act("discard"), data={"csrf": csrf(form), "letter": handles[2]})
    assert (await ended(page))[0]["done"] == 1
    assert [letter.item for letter in await queue.dead_letters()] == [b"oldest"]


async def test_as_many_of_equal_ones_as_were_chosen(open_page: OpenPage, client: Client) -> None:
    orders, dead = AsyncQueue[bytes]("orders", client=client), AsyncQueue[bytes]("orders:dead", client=client)
    for queue in (orders, dead):
        await queue.create()
    await dead.put_many([b"same", b"other", b"same", b"same", b"same"])  # without reasons
    page = await open_page("orders", allow_actions=True)
    await shown(page, 1)
    form = await page.get("/queue/letters?at=orders")
    handles = re.findall(r'name="letter" value="([^"]+)"', form.text)
    assert len(handles) == 5
    await page.post(act("discard", "orders"), data={"csrf": csrf(form), "letter": [handles[0], handles[2]]})
    assert (await ended(page))[0]["done"] == 2
    link = html.unescape(re.findall(r'href="([^"]*what=requeue&amp;id=[^"]*)"', form.text)[0])
    assert "1 moved back" in (await do(page, link)).text
    assert await orders.get_many(9) == [b"same"]
    assert sorted(letter.raw for letter in await orders.dead_letters()) == [b"other", b"same"]
    one = next(letter.id for letter in await orders.dead_letters() if letter.raw == b"same")
    assert "all of them are meant" in (await page.get(act("discard", "orders", id=one))).text


DAMAGED: list[tuple[int, dict[str, Any]]] = [
    (413, {"data": {"chosen": [f"id{number}" for number in range(2001)]}}),
    (415, {"json": {"chosen": ["id1"]}}),
    (415, {"files": {"chosen": (None, "id1")}}),
    (415, {"content": b"chosen=id1"}),
    (409, {}),
    (409, {"data": {"rate": "5"}}),
    (409, {"data": {"id": "id1"}}),
    (409, {"data": {"all": "1", "chosen": "id1"}}),
]


async def test_a_damaged_form_touches_nothing(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True, tokens=TOKENS)
    page.headers["authorization"] = f"Bearer {OPERATOR}"
    await shown(page, 1)
    for what in ("discard", "requeue"):
        for status, sent in DAMAGED:
            answer = await page.post(f"{act(what)}&format=json", **sent)
            assert answer.status_code == status, (sent, answer.text)
    assert (await page.get("/jobs?format=json")).json()["jobs"] == []
    assert len(await clicks.dead_letters()) == 6


async def test_a_form_that_does_not_come_whole_touches_nothing(url: str, clicks: EventQueue[bytes]) -> None:
    page = apressure.web.app("events:clicks", url=url, interval=0.05, allow_actions=True, tokens=TOKENS)
    whole = httpx.Request(
        "POST", f"http://127.0.0.1{act('discard')}",
        headers={"authorization": f"Bearer {OPERATOR}", "content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    coming: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"all=1&error=lar", "more_body": True}, {"type": "http.disconnect"},
    ]  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/queue/act", "raw_path": b"/queue/act", "query_string": whole.url.query, "root_path": "",
        "headers": [(name.lower(), value) for name, value in whole.headers.raw], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    async with page.router.lifespan_context(page):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://127.0.0.1")
        client.headers["authorization"] = f"Bearer {OPERATOR}"
        await shown(client, 1)
        await page(scope, receive, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 400
        assert (await client.get("/jobs?format=json")).json()["jobs"] == []
    assert len(await clicks.dead_letters()) == 6


async def test_two_operators_at_once_do_each_once(
    open_page: OpenPage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_MOST", 2)
    queue = AsyncQueue[bytes]("orders", client=client, max_attempts=1)
    await queue.create()
    items = [b"%d" % number for number in range(40)]
    await bury(queue, items)
    page = await open_page("orders", allow_actions=True, trust_header="user", operators=["ann", "bob"])
    ann, bob = {"user": "ann"}, {"user": "bob"}
    await until(page, "/?format=json", lambda found: found["watched"] == 1, ann)
    for user in (ann, bob):  # both have the question before their eyes
        assert "Move 40 dead letters" in (await page.get(act("requeue", "orders"), headers=user)).text

    async def requeue(user: dict[str, str]) -> None:
        form = await page.get(act("requeue", "orders"), headers=user)
        typed = {"csrf": csrf(form), "all": "1"}
        assert (await page.post(act("requeue", "orders"), data=typed, headers=user)).status_code == 200

    await asyncio.gather(requeue(ann), requeue(bob))
    both = await ended(page, 2, **ann)
    assert {job["who"] for job in both} == {"ann", "bob"}
    assert {job["state"] for job in both} == {"done"}
    assert sum(job["done"] for job in both) == 40
    assert sorted(await queue.get_many(100), key=int) == items
    assert await queue.dead_letters() == []
    assert (await ended(page, 2, **bob)) == both  # each sees what the other one has done


async def test_a_job_is_stopped_and_ends_with_the_page(
    open_page: OpenPage, clicks: EventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    await do(page, act("requeue"), rate="0.5")
    (job,) = (await until(page, letters(), lambda found: found["jobs"] and found["jobs"][0]["done"]))["jobs"]
    assert f"Stop {job['id']}" in (await page.get("/jobs")).text
    assert "has done, 1, is done" in (await do(page, act("stop", id=job["id"]))).text
    assert (await ended(page))[0]["state"] == "stopped"
    assert len(await clicks.dead_letters()) == 5
    assert "no such job" in (await do(page, act("stop", id=job["id"]))).text
    assert "no such job" in (await do(page, act("stop", id="none"))).text
    monkeypatch.setattr(jobs, "MOST", 1)
    await do(page, act("requeue"), rate="0.5")
    assert (await do(page, act("requeue"), rate="0.5")).status_code == 409
    async with asyncio.timeout(60):
        while await clicks.qsize() < 2:
            await asyncio.sleep(0.02)
    begun = await open_page("events:clicks", allow_actions=True)  # as after a restart: the job is begun again
    await shown(begun, 1)
    await do(begun, act("requeue"))
    assert (await ended(begun))[0]["state"] == "done"
    assert sorted(await clicks.get_many(9)) == [b"secret-%d" % number for number in range(6)]


async def test_a_job_is_stopped_only_as_one_of_its_queue(
    open_page: OpenPage, clicks: EventQueue[bytes], client: Client
) -> None:
    await EventQueue[bytes]("other", client=client).create()
    page = await open_page(allow_actions=True)
    await shown(page, 2)
    await do(page, act("discard"), rate="0.5")
    (job,) = (await page.get("/jobs?format=json")).json()["jobs"]
    assert "no such job" in (await do(page, act("stop", "events:other", id=job["id"]))).text
    assert (await page.get("/jobs?format=json")).json()["jobs"][0]["state"] == "running"
    assert "It is stopped" in (await do(page, act("stop", id=job["id"]))).text


async def test_no_job_is_begun_while_the_page_ends(clicks: EventQueue[bytes]) -> None:
    seen: Any = SimpleNamespace(address="events:clicks", queue=clicks, server="")
    request = jobs.JobRequest(seen, "discard", DeadLetterSearch(), (), 0.5, "ann")
    begun = jobs.Jobs()
    first = begun.begin(request)

    async def ask_for_another() -> None:
        with pytest.raises(jobs.NoJobError, match="page ends"):
            begun.begin(request)

    await asyncio.gather(begun.aclose(), ask_for_another())
    assert first.state == "stopped"
    assert [job["id"] for job in begun.shown()] == [first.id]


async def test_a_job_that_fails_says_why(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True)
    await shown(page, 1)
    await clicks.close()
    await do(page, act("requeue"))
    (job,) = await ended(page)
    assert (job["state"], job["done"]) == ("failed", 0)
    assert "closed" in job["error"]
    assert "closed" in (await page.get("/jobs")).text
    assert len(await clicks.dead_letters()) == 6
    assert (await do(page, act("discard"))).status_code == 200  # a closed queue's dead letters can be deleted
    assert (await ended(page, 2))[0]["done"] == 6


async def test_viewers_see_jobs_and_stop_none(open_page: OpenPage, clicks: EventQueue[bytes]) -> None:
    page = await open_page("events:clicks", allow_actions=True, tokens=TOKENS)
    viewer, operator = {"authorization": f"Bearer {VIEWER}"}, {"authorization": f"Bearer {OPERATOR}"}
    await until(page, "/?format=json", lambda found: found["watched"] == 1, viewer)
    begun = await page.post(f"{act('discard')}&format=json", data={"all": "1", "rate": "0.5"}, headers=operator)
    assert begun.status_code == 200
    (job,) = (await page.get("/jobs?format=json", headers=viewer)).json()["jobs"]
    assert "what=stop" not in (await page.get("/jobs", headers=viewer)).text
    assert (await page.post(act("stop", id=job["id"]), headers=viewer)).status_code == 403
    shown_letters = (await page.get("/queue/letters?at=events:clicks", headers=viewer)).text
    assert 'type="checkbox"' not in shown_letters
    assert (await page.post(act("stop", id=job["id"]), headers=operator)).status_code == 200
