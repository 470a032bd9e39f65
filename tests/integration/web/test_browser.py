"""The page in Chromium: each view, the keyboard, what changes while it is open, a restart, and accessibility."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.select import Select

from apressure import AsyncQueue, Client, EventQueue, TaskQueue
from apressure.core.history import Minute
from apressure.core.workers import encode
from tests.integration.commands import wait_until
from tests.integration.spark.conftest import jobs as jobs  # noqa: PLC0414 (a fixture)
from tests.integration.spark.support import Jobs, seal, texts
from tests.integration.web.browser import Served, complaints, do, emulate, links, loaded, problems, text_of
from tests.integration.workers.support import beat, record_of

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

HOSTILE = "<img src=x onerror=window.owned=1>/..?#\"'"


async def fill(client: Client) -> None:
    """Make queues of every kind of which each view has something to show."""
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create(bound=2)
    await orders.put_many([b'{"card": 4711}', b"two"])
    now = int(time.time()) // 60 * 60
    for minutes in (30, 29, 28, 20, 3, 2, 1):
        await orders.write_history(Minute(now - minutes * 60, minutes, 2, minutes % 3, 10 + minutes, 9, 4 * minutes))
    clicks = EventQueue[bytes](HOSTILE, client=client, max_attempts=1)
    await clicks.create()
    await clicks.put(b"x")
    await (await clicks.receive()).nack(ValueError(HOSTILE))
    await clicks.put(b"y")
    await (await clicks.receive()).ack()
    await clicks.every("nightly", 86400, b"report")
    await TaskQueue[Any]("reports", client=client).put({"a": HOSTILE})
    paused = EventQueue[bytes]("paused", client=client)
    await paused.create()
    await paused.pause()


def all_pages(chromium: WebDriver, base: str) -> list[str]:
    chromium.get(base)
    wait_until(lambda: len(links(chromium, "/queue?")) >= 4)
    pages = [base, f"{base}workers", f"{base}schedules", f"{base}jobs", f"{base}nonsense"]
    forms: dict[str, str] = {}
    for link in links(chromium, "/queue?"):
        chromium.get(link)
        wait_until(lambda: links(chromium, "/queue/"))
        pages += [link, *links(chromium, "/queue/")]
        for form in links(chromium, "what="):
            forms.setdefault(re.findall(r"what=(\w+)", form)[0], form)
    pages += [form for what, form in forms.items() if what in ("delete", "discard", "key", "put", "rate")]
    return pages


def test_each_view_is_accessible_in_light_and_dark(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    do(url, fill)
    page = str(serve("--show-bodies", "--allow-actions"))
    loaded(chromium, page, "4 queues")
    pages = all_pages(chromium, page)
    assert len(pages) > 15
    complaints(chromium)
    for scheme in ("light", "dark"):
        emulate(chromium, scheme)
        for address in pages:
            chromium.get(address)
            assert chromium.execute_script("return window.owned") is None
            assert not chromium.find_elements(By.CSS_SELECTOR, "img")
            if not address.endswith("nonsense"):
                assert complaints(chromium) == []
            assert problems(chromium) == [], (scheme, address)
            complaints(chromium)
    emulate(chromium, "light")


def test_it_is_used_with_the_keyboard_alone(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    do(url, fill)
    page = str(serve())
    loaded(chromium, page, "4 queues")

    def focused(what: str = "textContent") -> str:
        found: str = chromium.execute_script(f"return document.activeElement.{what}")
        return found

    def press(*keys: str) -> None:  # whatever has the focus then: elements come and go while the page is open
        ActionChains(chromium).send_keys(*keys).perform()

    press(Keys.TAB)
    assert focused() == "Skip to the content"
    press(Keys.ENTER)
    assert focused("tagName") == "MAIN"
    press(Keys.TAB)
    assert focused("id") == "filter"
    press("paused", Keys.ENTER)
    wait_until(lambda: "1 queue of 4" in text_of(chromium))
    assert "filter=paused" in chromium.current_url
    for _ in range(20):
        press(Keys.TAB)
        if focused() == "events:paused":
            break
    shown = chromium.find_element(By.ID, "live").id
    wait_until(lambda: chromium.find_element(By.ID, "live").id != shown)  # it was loaded again meanwhile
    assert focused() == "events:paused"
    press(Keys.ENTER)
    wait_until(lambda: "paused since" in text_of(chromium) and "Figures" in text_of(chromium))


def test_an_open_page_changes_by_itself_and_survives_a_restart(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    async def put(client: Client) -> None:
        await EventQueue[bytes]("clicks", client=client).put(b"x")

    do(url, put)
    served = serve()
    loaded(chromium, str(served), "events:clicks")
    chromium.get(f"{served}queue?at=events:clicks")
    chromium.execute_script("window.same = true")

    def waiting() -> str:
        found = re.search(r"Waiting\n([0-9,]+)", text_of(chromium))
        return found[1] if found else ""

    wait_until(lambda: waiting() == "1")
    do(url, put)
    wait_until(lambda: waiting() == "2")
    status = chromium.find_element(By.ID, "connection")
    assert status.text == "live"

    def opened() -> bool:
        with contextlib.suppress(StaleElementReferenceException):  # it was just brought up to date
            details = chromium.find_element(By.ID, "details")
            if details.get_attribute("open") != "true":
                details.find_element(By.TAG_NAME, "summary").click()
            return details.get_attribute("open") == "true"
        return False

    wait_until(opened)
    # As where the page was started again, and has not looked at the queue yet.
    chromium.execute_script("const live = document.getElementById('live'); live.replaceWith(live.cloneNode(false));")
    wait_until(lambda: waiting() == "2")
    assert chromium.execute_script("return document.querySelector('#details').open")
    served.stop()
    wait_until(lambda: "not connected" in status.text)
    do(url, put)
    served.start()
    wait_until(lambda: waiting() == "3")
    wait_until(lambda: status.text == "live")
    assert chromium.execute_script("return document.querySelector('#details').open")
    assert chromium.execute_script("return window.same")  # the page was not loaded as a whole


def test_people_sign_in(chromium: WebDriver, serve: Callable[..., Served], url: str, tmp_path: Path) -> None:
    async def create(client: Client) -> None:
        await EventQueue[bytes]("clicks", client=client).create()

    do(url, create)
    tokens = tmp_path / "tokens"
    tokens.write_text("viewer a-token-of-many-characters\n")
    served = serve("--token-file", str(tokens))
    chromium.get(f"{served}queue?at=events:clicks")
    assert "login" in chromium.current_url
    for scheme in ("light", "dark"):
        emulate(chromium, scheme)
        assert problems(chromium) == []
    chromium.find_element(By.ID, "token").send_keys("wrong", Keys.ENTER)
    wait_until(lambda: "not accepted" in text_of(chromium))
    chromium.find_element(By.ID, "token").send_keys("a-token-of-many-characters", Keys.ENTER)
    wait_until(lambda: chromium.current_url.endswith("queue?at=events:clicks"))
    loaded(chromium, str(served), "events:clicks")
    assert chromium.execute_script("return document.cookie") == ""
    served.stop()
    served.start()  # the session goes on
    loaded(chromium, str(served), "events:clicks")
    chromium.find_element(By.XPATH, "//button[.='Sign out']").click()
    wait_until(lambda: "login" in chromium.current_url)


def test_it_fits_a_phone(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    do(url, fill)
    page = str(serve())
    loaded(chromium, page, "4 queues")
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    chromium.execute("executeCdpCommand", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
    try:
        for address in all_pages(chromium, page):
            chromium.get(address)
            assert chromium.execute_script("return document.documentElement.scrollWidth") <= 360, address
    finally:
        chromium.execute("executeCdpCommand", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def test_operators_change_limits_and_repair_with_a_browser(
    chromium: WebDriver, serve: Callable[..., Served], url: str, db: redis.Redis
) -> None:
    do(url, fill)
    db.set("__pressure__:orders:stats:produced_bytes", "many")
    page = str(serve("--allow-actions"))
    loaded(chromium, page, "4 queues")

    def send(button: str, says: str) -> None:
        assert problems(chromium) == []
        chromium.find_element(By.XPATH, f"//form//button[.='{button}']").click()
        wait_until(lambda: says in text_of(chromium))
        assert problems(chromium) == []

    chromium.get(f"{page}queue/doctor?at=orders")
    chromium.find_element(By.LINK_TEXT, "Repair").click()
    wait_until(lambda: "This is repaired:\n" in text_of(chromium))
    assert "every put fails" in text_of(chromium)
    send("Repair", "to 0; it was 'many'")
    assert db.get("__pressure__:orders:stats:produced_bytes") == b"0"
    loaded(chromium, f"{page}queue?at=orders", "Waiting\n2 of 2")
    chromium.get(links(chromium, "what=bound")[0])
    assert "the bound is 2." in text_of(chromium)
    chromium.find_element(By.ID, "most").send_keys("5000")
    send("Change the bound", "At most 5,000 may wait.")
    assert db.get("__pressure__:orders:bound") == b"5000"
    loaded(chromium, f"{page}queue?at=orders", "Waiting\n2 of 5,000")
    chromium.get(f"{page}queue/act?at=events:paused&what=key")
    chromium.find_element(By.ID, "most").send_keys("3")
    Select(chromium.find_element(By.ID, "order")).select_by_visible_text("what came first")
    send("Limit each key", "It hands out 3 of a key.")


def test_operators_do_everything_else_with_a_browser(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    async def work(client: Client) -> None:
        await fill(client)
        await beat(EventQueue[bytes]("paused", client=client), b"far-7/1", encode(record_of()))

    do(url, work)
    page = str(serve("--allow-actions"))
    loaded(chromium, page, "4 queues")
    loaded(chromium, f"{page}queue?at=events:paused", "far-7")
    complaints(chromium)  # those of the test before, whose page has ended
    forms = {re.findall(r"what=(\w+)", link)[0]: link for link in links(chromium, "what=")}

    def act(what: str, asks: str, says: str, **typed: str) -> None:
        chromium.get(forms[what])
        wait_until(lambda: asks in text_of(chromium))
        assert problems(chromium) == []
        for name, text in typed.items():
            chromium.find_element(By.ID, name).send_keys(text)
        chromium.find_element(By.CSS_SELECTOR, "form.action button").click()
        wait_until(lambda: says in text_of(chromium))
        assert problems(chromium) == []
        assert len(complaints(chromium)) == ("Nothing" in says)  # the browser complains of the status 409

    act("resume", "Resume events:paused?", "It is resumed.")
    act("hold", "Hand out nothing", "It hands out nothing for 60 s.", seconds="60")
    act("rate", "Now: ", "It hands out 5 in 2 s.", count="5", per="2")
    act("concurrency", "may be in flight?", "At most 3", most="3")
    act("put", "Put an item", "An item of 5 bytes was put.", item="hello")
    act("pause", "1 wait", "It is paused.")
    act("stack", "Ask the worker far-7", "It tells its stack")
    act("drain", "Drain the worker far-7", "It drains.")
    act("purge", "1 messages", "1 deleted.")
    act("close", "It takes no more messages.", "It is closed.")
    act("delete", "They are lost.", "Nothing was deleted.", name="another")
    act("delete", "They are lost.", "It is deleted.", name="events:paused")
    loaded(chromium, page, "3 queues")


def test_operators_give_back_what_the_dead_have_with_a_browser(
    chromium: WebDriver, serve: Callable[..., Served], jobs: Jobs
) -> None:
    epoch = jobs.begin(texts(30))
    seal(jobs.source, epoch, 0, 10)
    jobs.plain.delete("__pressure__:jobs:producer_free")
    jobs.plain.set("__pressure__:jobs:producer", "web-1:77")
    page = str(serve("--allow-actions"))
    loaded(chromium, page, "1 queue")
    loaded(chromium, f"{page}queue?at=jobs", "Messages in flight")
    for address, name, done in (
        (links(chromium, "give_back_batches")[0], "g", "10 messages were put back"),
        (f"{page}queue/doctor?at=jobs", "web-1:77", "gave back the producer role of 'web-1:77'"),
    ):
        chromium.get(address)
        assert problems(chromium) == []
        if "doctor" in address:
            chromium.find_element(By.LINK_TEXT, "Give back what web-1:77 has").click()
            wait_until(lambda: "Only if you know that it is dead" in text_of(chromium))
            assert problems(chromium) == []
        chromium.find_element(By.ID, "name").send_keys(name, Keys.ENTER)
        wait_until(lambda: done in text_of(chromium))  # noqa: B023 (called in this round)
        assert problems(chromium) == []
    assert jobs.waiting() == texts(30)
    assert jobs.plain.exists("__pressure__:jobs:producer_free")
