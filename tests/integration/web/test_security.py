"""Who gets what of the page: hosts, sizes, tokens, sessions, forms of other sites; and no secret anywhere."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

import apressure.web
from apressure import AsyncQueue, Client
from tests.integration.web.conftest import OpenPage, shown

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

OPERATOR = "operators-have-this-token"
VIEWER = "viewers-have-this-token-"
TOKENS = f"viewer {VIEWER}\noperator {OPERATOR}\n"
PATHS = ("/", "/queue?at=orders", "/queue/messages?at=orders", "/workers", "/schedules", "/events", "/nonsense")
FORM = {"content-type": "application/x-www-form-urlencoded"}


def csrf(answer: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text)
    assert found is not None
    return found[1]


async def sign_in(page: httpx.AsyncClient, token: str, where: str = "/login") -> httpx.Response:
    return await page.post(where, data={"csrf": csrf(await page.get(where)), "token": token})


async def test_every_answer_has_the_headers_of_security(open_page: OpenPage) -> None:
    page = await open_page("orders", tokens=TOKENS)
    for path in (*PATHS, "/login", "/healthz", "/static/page.js", "/static/../access.py", f"/{'x' * 5000}"):
        for headers in ({}, {"authorization": f"Bearer {VIEWER}"}, {"host": "evil.example.org"}):
            if path == "/events" and "authorization" in headers:
                continue  # it does not end
            answer = await page.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"


async def test_pages_need_nothing_that_the_policy_forbids(open_page: OpenPage, client: Client) -> None:
    await AsyncQueue("orders", client=client).create(bound=3)
    page = await open_page("orders")
    await shown(page, 1)
    for path in ("/", "/queue?at=orders", "/queue/doctor?at=orders", "/workers", "/schedules", "/login"):
        text = (await page.get(path)).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?! src=\"/static/)", text)
        assert not re.search(r"(src|href|action)=\"(?!/|#|data:,)", text)


@pytest.mark.parametrize("host", ["evil.example.org", "127.0.0.1.evil.org", "", "localhost.", "[::1", "localhost@evil"])
async def test_other_hosts_are_refused(open_page: OpenPage, host: str) -> None:
    page = await open_page("orders")
    for path in PATHS:
        assert (await page.get(path, headers={"host": host})).status_code == 421
    assert (await page.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "[::1]"])
async def test_names_of_this_machine_are_accepted(open_page: OpenPage, host: str) -> None:
    assert (await (await open_page("orders")).get("/", headers={"host": host})).status_code == 200


async def test_hosts_can_be_allowed(open_page: OpenPage) -> None:
    page = await open_page("orders", hosts=["Shop.example.org"])
    assert (await page.get("/", headers={"host": "shop.example.org:443"})).status_code == 200
    assert (await page.get("/", headers={"host": "localhost"})).status_code == 421
    assert (await (await open_page("orders", hosts=["*"])).get("/", headers={"host": "any"})).status_code == 200


async def test_without_a_token_nothing_is_shown(open_page: OpenPage) -> None:
    page = await open_page("orders", tokens=TOKENS)
    for path in PATHS:
        assert (await page.get(path)).status_code == 401
        answer = await page.get(path, headers={"accept": "text/html"})
        assert answer.status_code == (401 if path == "/events" else 303)
        assert "orders" not in answer.text
    wrong = await page.get("/?format=json", headers={"authorization": f"Bearer {VIEWER}x", "accept": "text/html"})
    assert wrong.status_code == 401
    assert "Basic" in wrong.headers["www-authenticate"]
    assert (await page.get("/?format=json", headers={"authorization": f"Bearer {VIEWER}"})).status_code == 200
    assert (await page.get("/?format=json", auth=("ann", VIEWER))).status_code == 200


async def test_a_person_signs_in_and_comes_back_to_the_page(
    open_page: OpenPage, caplog: pytest.LogCaptureFixture
) -> None:
    page = await open_page("orders", tokens=TOKENS)
    asked = await page.get("/queue?at=%FF%2F..&hours=24", headers={"accept": "text/html"})
    where = asked.headers["location"]
    with caplog.at_level(logging.DEBUG):
        wrong = await sign_in(page, "not-the-right-token", where)
        assert wrong.status_code == 403
        assert "not accepted" in wrong.text
        answer = await sign_in(page, VIEWER, where)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/queue?at=%FF%2F..&hours=24"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert VIEWER not in cookie
    assert "not-the-right-token" not in caplog.text + wrong.text
    assert VIEWER not in caplog.text
    assert (await page.get("/")).status_code == 200
    out = await page.post("/logout", data={"csrf": csrf(await page.get("/"))})
    assert out.headers["location"] == "/login"
    page.cookies.clear()
    assert (await page.get("/")).status_code == 401


async def test_the_cookie_is_secure_with_tls(open_page: OpenPage) -> None:
    page = await open_page("orders", tokens=TOKENS)
    page.base_url = httpx.URL("https://127.0.0.1")
    assert "secure" in (await sign_in(page, VIEWER)).headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "where",
    ["//evil.example.org", "https://evil.example.org", "/\\evil.org", "\\\\evil.org", "x//evil.org", "%0d%0aX: y"],
)
async def test_signing_in_leads_to_no_other_site(open_page: OpenPage, where: str) -> None:
    page = await open_page("orders", tokens=TOKENS)
    answer = await page.post(
        "/login", params={"next": where}, data={"csrf": csrf(await page.get("/login")), "token": VIEWER}
    )
    assert answer.headers["location"].startswith("/")
    assert httpx.URL("http://127.0.0.1/").join(answer.headers["location"]).host == "127.0.0.1"


async def test_forms_of_other_sites_are_refused(open_page: OpenPage) -> None:
    page = await open_page("orders", tokens=TOKENS)
    good = csrf(await page.get("/login"))
    for data, headers in (
        ({"token": VIEWER}, {}),
        ({"token": VIEWER, "csrf": "0" * 64}, {}),
        ({"token": VIEWER, "csrf": good}, {"sec-fetch-site": "cross-site"}),
        ({"token": VIEWER, "csrf": good}, {"sec-fetch-site": "same-site"}),
    ):
        assert (await page.post("/login", data=data, headers=headers)).status_code == 403
    await sign_in(page, VIEWER)
    assert (await page.post("/logout", data={"csrf": good})).status_code == 403  # that of somebody else


async def test_a_proxy_names_the_user(open_page: OpenPage) -> None:
    page = await open_page("orders", trust_header="X-User")
    assert (await page.get("/", headers={"accept": "text/html"})).status_code == 401
    assert (await page.get("/", headers={"x-user": "ann"})).status_code == 200


async def test_what_is_too_large_is_refused(open_page: OpenPage) -> None:
    page = await open_page("orders")
    assert (await page.get("/" + "x" * 2000)).status_code == 414
    assert (await page.get("/?filter=" + "x" * 20_000)).status_code == 414
    assert (await page.get("/", headers={"cookie": "a=" + "x" * 9000})).status_code == 431
    assert (await page.get("/", headers={"x-more": "x" * 40_000})).status_code == 431
    assert (await page.post("/login", content=b"x" * (1 << 20) + b"y", headers=FORM)).status_code == 413
    assert (await page.post("/login", headers={"content-length": "-1"})).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 16)

    assert (await page.post("/login", content=endless(), headers=FORM)).status_code == 400
    many = "&".join(f"a{number}=1" for number in range(5000))
    assert (await page.post("/login", content=many, headers=FORM)).status_code == 413


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_views_are_only_read(open_page: OpenPage, method: str) -> None:
    page = await open_page("orders")
    for path in ("/", "/queue?at=orders", "/workers", "/healthz", "/static/page.css"):
        assert (await page.request(method, path)).status_code == 405


async def test_a_failure_is_logged_and_not_shown(
    open_page: OpenPage, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await AsyncQueue("orders", client=client).create()
    page = await open_page("orders")
    await shown(page, 1)

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("very-secret")

    monkeypatch.setattr(AsyncQueue, "find_dead_letters", fails)
    answer = await page.get("/queue/letters?at=orders")
    assert answer.status_code == 500
    assert "very-secret" not in answer.text
    assert "very-secret" in caplog.text
    assert "content-security-policy" in answer.headers


async def test_it_works_under_any_prefix_of_another_application(url: str, client: Client) -> None:
    await AsyncQueue("orders", client=client).create()
    page = apressure.web.app("orders", url=url, interval=0.05, history=False, tokens=TOKENS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with page.router.lifespan_context(page):
            yield

    shop = FastAPI(lifespan=lifespan)
    shop.mount("/admin/queues", page)

    async with (
        shop.router.lifespan_context(shop),
        httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://localhost") as mounted,
    ):
        asked = await mounted.get("/admin/queues/queue?at=orders", headers={"accept": "text/html"})
        assert asked.headers["location"] == "/admin/queues/login?next=queue%3Fat%3Dorders"
        answer = await sign_in(mounted, VIEWER, asked.headers["location"])
        assert answer.headers["location"] == "/admin/queues/queue?at=orders"
        assert "path=/admin/queues" in answer.headers["set-cookie"].lower()
        overview = await mounted.get("/admin/queues/")
        assert overview.status_code == 200
        links = re.findall(r'(?:href|src|action|data-events)="([^"]*)"', overview.text)
        assert [link for link in links if not link.startswith(("/admin/queues/", "#", "data:"))] == []
        for link in links:
            if link.startswith("/") and not link.endswith(("events", "logout")):
                assert (await mounted.get(link)).status_code == 200


async def test_a_page_whose_lifespan_does_not_run_says_so(url: str) -> None:
    page = apressure.web.app("orders", url=url)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://localhost") as asked:
        answer = await asked.get("/")
        assert answer.status_code == 503
        assert "lifespan_context" in answer.text
        assert (await asked.get("/healthz")).status_code == 503


@pytest.mark.parametrize("option", [{"tokens": "short"}, {"redact": ["card"]}, {"interval": 0}, {"url": "embedded://"}])
def test_options_are_checked(option: dict[str, object], url: str) -> None:
    with pytest.raises(ValueError):
        apressure.web.app("orders", **{"url": url, **option})
