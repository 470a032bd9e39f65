"""Messages in Chromium: dead letters are searched, chosen and requeued by a job; copies, delayed messages, tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from apressure import Client, EventQueue, QueueEmptyError, TaskQueue
from tests.integration.commands import wait_until
from tests.integration.web.browser import Served, complaints, do, emulate, loaded, problems, text_of
from tests.integration.web.test_browser import HOSTILE

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]


async def fill(client: Client) -> None:
    queue = EventQueue[bytes](HOSTILE, client=client, max_attempts=1)
    await queue.create()
    await queue.put_many(b"item %d" % number for number in range(6))
    for number in range(6):
        await (await queue.receive()).nack(ValueError("odd" if number % 2 else HOSTILE))
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


def sizes(url: str) -> tuple[int, int]:
    """How many messages wait, and how many dead letters there are."""

    async def look() -> tuple[int, int]:
        async with Client(url) as client:
            statistics = await EventQueue[bytes](HOSTILE, client=client).statistics()
            return statistics.length, statistics.dead_letters

    return asyncio.run(look())


def check(chromium: WebDriver) -> None:
    """The page that is shown is accessible in light and dark, and runs no script of a message."""
    for scheme in ("dark", "light"):
        emulate(chromium, scheme)
        assert problems(chromium) == [], (scheme, chromium.current_url)
    assert chromium.execute_script("return window.owned") is None
    assert complaints(chromium) == []


def press(chromium: WebDriver, text: str) -> None:
    """Press the button or the link that says this, in one step: elements come and go while the page is open."""
    pressed = chromium.execute_script(
        "const one = [...document.querySelectorAll('a, button')].find((one) => one.textContent.includes(arguments[0]));"
        "one && one.click(); return Boolean(one)",
        text,
    )
    assert pressed, text


def test_dead_letters_are_searched_and_requeued_by_a_job(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    do(url, fill)
    page = str(serve("--show-bodies", "--allow-actions"))
    loaded(chromium, page, "1 queue")
    complaints(chromium)  # those of the test before, whose page has ended
    press(chromium, "events:")
    press(chromium, "Dead letters")
    wait_until(lambda: "6 found" in text_of(chromium))
    check(chromium)
    chromium.find_element(By.ID, "error").send_keys("ODD", Keys.ENTER)
    wait_until(lambda: "3 found" in text_of(chromium))
    assert "item 1" in text_of(chromium)
    assert "item 0" not in text_of(chromium)
    check(chromium)
    chromium.execute_script("document.querySelector('[data-all]').click()")
    marked = chromium.find_elements(By.CSS_SELECTOR, "input[name=letter]:checked")
    assert len(marked) == 3
    marked[0].click()
    check(chromium)  # meanwhile, the page is not loaded again
    assert len(chromium.find_elements(By.CSS_SELECTOR, "input[name=letter]:checked")) == 2
    press(chromium, "Requeue the chosen ones")
    wait_until(lambda: "Move the 2 chosen dead letters" in text_of(chromium))
    check(chromium)
    assert sizes(url) == (0, 6)
    chromium.find_element(By.ID, "rate").send_keys("1")
    press(chromium, "Requeue dead letters")
    wait_until(lambda: "has begun" in text_of(chromium))
    check(chromium)
    chromium.get("about:blank")  # the job goes on
    wait_until(lambda: sizes(url) == (2, 4))
    chromium.get(f"{page}jobs")
    wait_until(lambda: "done" in text_of(chromium) and "2 chosen ones" in text_of(chromium))
    check(chromium)


def test_chosen_dead_letters_move_into_another_queue(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    async def fill_two(client: Client) -> None:
        await fill(client)
        await EventQueue[bytes]("late", client=client).create()

    def late() -> int:
        async def look() -> int:
            async with Client(url) as client:
                return await EventQueue[bytes]("late", client=client).qsize()

        return asyncio.run(look())

    do(url, fill_two)
    page = str(serve("--show-bodies", "--allow-actions"))
    loaded(chromium, page, "2 queues")
    complaints(chromium)
    press(chromium, HOSTILE[:5])
    press(chromium, "Dead letters")
    wait_until(lambda: "6 found" in text_of(chromium))
    chromium.execute_script(
        "[...document.querySelectorAll('input[name=letter]')].slice(0, 2).forEach((one) => one.click())"
    )
    press(chromium, "Move the chosen ones")
    wait_until(lambda: "Move the 2 chosen dead letters" in text_of(chromium))
    check(chromium)
    chromium.find_element(By.ID, "queue").send_keys("events:late")
    press(chromium, "Move dead letters")
    wait_until(lambda: "has begun" in text_of(chromium))
    check(chromium)
    wait_until(lambda: (sizes(url), late()) == ((0, 4), 2))
    chromium.get(f"{page}jobs")
    wait_until(lambda: "move to events:late" in text_of(chromium))
    check(chromium)


def test_what_is_marked_while_the_page_is_loaded_stays_marked(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    do(url, fill)
    loaded(chromium, str(serve("--show-bodies", "--allow-actions")), "1 queue")
    press(chromium, "events:")
    press(chromium, "Dead letters")
    wait_until(lambda: "6 found" in text_of(chromium))
    # The answer waits until somebody has marked something. A timer runs after the page has taken the answer.
    chromium.execute_script(
        "const fetched = window.fetch;"
        "const released = new Promise((release) => { window.release = release; });"
        "window.fetch = async (...request) => {"
        "  const answer = await fetched(...request);"
        "  return {redirected: false, text: async () => {"
        "    const text = await answer.text();"
        "    window.answered = true; await released; setTimeout(() => { window.taken = true; }); return text;"
        "  }};"
        "};"
    )
    wait_until(lambda: chromium.execute_script("return Boolean(window.answered)"))
    chromium.execute_script("document.querySelector('input[name=letter]').click(); window.release()")
    wait_until(lambda: chromium.execute_script("return Boolean(window.taken)"))
    assert len(chromium.find_elements(By.CSS_SELECTOR, "input[name=letter]:checked")) == 1


def test_a_copy_of_a_dead_letter_is_edited_and_put(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    do(url, fill)
    page = str(serve("--show-bodies", "--allow-actions"))
    loaded(chromium, page, "1 queue")
    complaints(chromium)
    press(chromium, "events:")
    press(chromium, "Dead letters")
    wait_until(lambda: "6 found" in text_of(chromium))
    press(chromium, "Edit a copy")
    wait_until(lambda: "Put this as a new message" in text_of(chromium))
    check(chromium)
    item = chromium.find_element(By.ID, "item")
    assert item.get_property("value") == "item 0"
    item.send_keys(Keys.END, " again")
    press(chromium, "Put a copy")
    wait_until(lambda: "12 bytes was put" in text_of(chromium))
    check(chromium)
    assert sizes(url) == (1, 6)
    press(chromium, "Back to")
    wait_until(lambda: "6 found" in text_of(chromium))
    press(chromium, "Messages")
    wait_until(lambda: "item 0 again" in text_of(chromium))
    check(chromium)


def test_delayed_messages_are_promoted(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    async def delay(client: Client) -> None:
        queue = EventQueue[bytes](HOSTILE, client=client)
        await queue.create()
        await queue.put_many([b"1", b"2"], delay=3600)

    do(url, delay)
    page = str(serve("--allow-actions"))
    loaded(chromium, page, "1 queue")
    complaints(chromium)
    press(chromium, "events:")
    press(chromium, "Messages")
    wait_until(lambda: "0 waiting" in text_of(chromium))
    press(chromium, "delayed")
    wait_until(lambda: "2 delayed" in text_of(chromium))
    check(chromium)
    chromium.execute_script("document.querySelector('td a[href*=promote]').click()")
    wait_until(lambda: "Make the delayed message" in text_of(chromium))
    check(chromium)
    assert sizes(url) == (0, 0)
    press(chromium, "Promote delayed messages")
    wait_until(lambda: "1 are due now" in text_of(chromium))
    assert sizes(url) == (1, 0)


def test_a_task_is_cancelled(chromium: WebDriver, serve: Callable[..., Served], url: str) -> None:
    async def put(client: Client) -> None:
        await TaskQueue[str]("reports", client=client).put(HOSTILE)

    do(url, put)
    page = str(serve("--allow-actions", "--show-bodies"))
    loaded(chromium, page, "1 queue")
    complaints(chromium)
    press(chromium, "tasks:reports")
    press(chromium, "Tasks")
    wait_until(lambda: "pending" in text_of(chromium) and "Cancel" in text_of(chromium))
    check(chromium)
    press(chromium, "Cancel")
    wait_until(lambda: "Cancel the task" in text_of(chromium))
    check(chromium)
    press(chromium, "Cancel a task")
    wait_until(lambda: "It has failed now" in text_of(chromium))
    check(chromium)


def test_all_that_fit_are_deleted_by_a_job_that_is_stopped(
    chromium: WebDriver, serve: Callable[..., Served], url: str
) -> None:
    do(url, fill)
    page = str(serve("--allow-actions"))
    loaded(chromium, page, "1 queue")
    complaints(chromium)  # those of the test before, whose page has ended
    press(chromium, "events:")
    press(chromium, "Dead letters")
    chromium.find_element(By.ID, "error").send_keys("img src", Keys.ENTER)
    wait_until(lambda: "3 found" in text_of(chromium))
    press(chromium, "Delete all that fit")
    wait_until(lambda: "Delete 3 dead letters" in text_of(chromium))
    check(chromium)
    chromium.find_element(By.ID, "rate").send_keys("0.01")  # nothing more while this test lasts
    press(chromium, "Delete dead letters")
    wait_until(lambda: "has begun" in text_of(chromium))
    press(chromium, "Back to")
    wait_until(lambda: "running" in text_of(chromium))
    check(chromium)
    wait_until(lambda: sizes(url) == (0, 5))
    press(chromium, "Stop")
    wait_until(lambda: "Stop the job" in text_of(chromium))
    check(chromium)
    press(chromium, "Stop a job")
    wait_until(lambda: "It is stopped" in text_of(chromium))
    assert sizes(url) == (0, 5)
