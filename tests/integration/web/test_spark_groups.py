"""What Spark has in flight, on the page of its queue, and how it is given back."""

from __future__ import annotations

import asyncio
import html
import re

import pytest

from apressure.monitor import recent
from tests.integration.spark.conftest import jobs as jobs  # noqa: PLC0414 (a fixture)
from tests.integration.spark.support import Jobs, seal, texts
from tests.integration.web.conftest import OpenPage, until
from tests.integration.web.test_actions import act, do

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

WHERE = "/queue?at=jobs"


def take(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(30))
    seal(jobs.source, epoch, 0, 10)


async def test_what_spark_has_is_shown_and_given_back(
    open_page: OpenPage, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "SECONDS", 0.0)
    page = await open_page("jobs", allow_actions=True)
    found = await until(page, f"{WHERE}&format=json", lambda found: found["statistics"])
    assert found["spark"] == []
    assert "Spark" not in (await page.get(WHERE)).text
    await asyncio.to_thread(take, jobs)
    (group,) = (await page.get(f"{WHERE}&format=json")).json()["spark"]
    assert (group["group"], group["batches"], group["messages"], group["read"]) == ("g", 1, 10, 10)
    assert group["seconds"] >= 0
    shown = (await page.get(WHERE)).text
    (link,) = (html.unescape(one) for one in re.findall(r'href="([^"]*give_back_batches[^"]*)"', shown))
    assert "Put 10 messages of jobs" in (await page.get(link)).text
    wrong = await do(page, link, name="h")
    assert (wrong.status_code, len(jobs.waiting())) == (409, 20)
    assert "10 messages were put back" in (await do(page, link, name="g")).text
    assert jobs.waiting() == texts(30)
    assert "nothing of jobs in flight" in (await page.get(link)).text
    assert "give_back_batches" not in (await page.get(WHERE)).text
    assert (await page.get(act("give_back_batches", "events:jobs", id="g"))).status_code == 404


async def test_it_is_not_asked_for_by_each_page(open_page: OpenPage, jobs: Jobs) -> None:
    page = await open_page("jobs")
    await until(page, f"{WHERE}&format=json", lambda found: found["statistics"])
    assert (await page.get(f"{WHERE}&format=json")).json()["spark"] == []
    before = clients(jobs)
    for _ in range(5):
        await page.get(WHERE)
    assert clients(jobs) == before


def clients(jobs: Jobs) -> int:
    """How many connections the server has accepted: each question about groups makes one."""
    found: int = jobs.plain.info("stats")["total_connections_received"]
    return found


async def test_a_user_without_the_rights_for_that_sees_the_rest(open_page: OpenPage, jobs: Jobs, url: str) -> None:
    await asyncio.to_thread(take, jobs)
    jobs.plain.acl_setuser(
        "looks", enabled=True, passwords=["+secret"], commands=["+@all", "-hkeys"],
        keys=["*"], channels=["*"],
    )  # fmt: skip
    page = await open_page("jobs", url=url.replace("redis://", "redis://looks:secret@"))
    found = await until(page, f"{WHERE}&format=json", lambda found: found["statistics"])
    assert (found["length"], found["spark"]) == (20, [])
