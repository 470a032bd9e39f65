"""The page as a Starlette application: its routes, its lifespan, who may see it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from apressure.core.searching import MOST
from apressure.exceptions import PressureError, UnsupportedError
from apressure.monitor.monitor import Monitor
from apressure.web import actions
from apressure.web.access import COOKIE, SESSION, Access, Identity, read_tokens
from apressure.web.bodies import Bodies, read_pointer
from apressure.web.forms import Form
from apressure.web.guard import LONGEST_BODY, LOOPBACK, Guard
from apressure.web.jobs import Jobs
from apressure.web.live import Live
from apressure.web.rendering import Page, Renderer, frame_of, json_of, url_of
from apressure.web.views import changes, messages, queues
from apressure.web.views.asking import Asked, NoSuchPageError

logger = logging.getLogger("apressure")

View = Callable[[Asked], Awaitable[Page]]

_VIEWS: Final[dict[str, View]] = {
    "/": queues.overview,
    "/queue": queues.queue,
    "/queue/messages": messages.messages,
    "/queue/letters": messages.letters,
    "/queue/tasks": messages.tasks,
    "/queue/doctor": queues.doctor,
    "/workers": queues.workers,
    "/schedules": queues.schedules,
    "/jobs": changes.jobs,
}

_STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript"}

_FIELDS: Final = 2 * MOST
"""Of a form: as many as there may be dead letters on a page, and others."""

_FORM: Final = "application/x-www-form-urlencoded"

_PATIENCE: Final = 10.0
"""Seconds for a view."""


def app(
    *queues: str, url: str | None = None, prefix: str | None = None, interval: float = 2.0, history: bool = True,
    show_bodies: bool = False, redact: Iterable[str] = (), allow_actions: bool = False, tokens: str = "",
    trust_header: str = "", operators: Iterable[str] = (), hosts: Iterable[str] = LOOPBACK,
) -> Starlette:  # fmt: skip
    """Return the page as an application.

    It works under any mount prefix. Its lifespan watches the queues: an application that mounts it runs
    `async with page.router.lifespan_context(page)` in its own.

    Args:
        *queues: Addresses and patterns, as for `apressure top`; none for all queues of the server.
        url: The server of addresses that name none; None for the environment's.
        prefix: The prefix of all keys of AsyncQueues; None for the environment's.
        interval: Seconds between two looks at a queue.
        history: Write the minutes of queues, which charts need: see `Monitor`.
        show_bodies: Show what messages, and parameters and results of tasks, contain.
        redact: JSON pointers such as `/card/number` of what is not shown. Then only messages of JSON are shown.
        allow_actions: Operators may change queues.
        tokens: Who may see the page: lines such as `viewer TOKEN` or `operator TOKEN`. Without them and without
            `trust_header`, everybody who can connect is let in.
        trust_header: The header in which a proxy names the user. Only the proxy may reach the page then.
        operators: The users of that header who are operators.
        hosts: The names of hosts under which the page may be asked for; `*` for any.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    access = Access.of(read_tokens(tokens) if tokens else (), trust_header, operators)
    monitor = Monitor(*queues, url=url, prefix=prefix, interval=interval, history=history)
    bodies = Bodies(show_bodies, tuple(map(read_pointer, redact)))
    return _Application(monitor, access, bodies, allow_actions).made(hosts)


class _Application:
    """Answers requests.

    Args:
        monitor: Watches the queues.
        access: Who may do what.
        bodies: What of messages is shown.
        actions: Operators may change queues.
    """

    def __init__(self, monitor: Monitor, access: Access, bodies: Bodies, actions: bool) -> None:
        self._monitor = monitor
        self._access = access
        self._bodies = bodies
        self._actions = actions
        self._live = Live(monitor)
        self._jobs = Jobs()
        self._renderer = Renderer()
        self._running = False

    def made(self, hosts: Iterable[str]) -> Starlette:
        """Return the application."""
        routes = [
            *(Route(path, self._view(view)) for path, view in _VIEWS.items()),
            *([Route("/queue/act", self._act, methods=["GET", "POST"])] if self._actions else []),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/events", self._events),
            Route("/healthz", self._healthz),
            *(Route(f"/static/{name}", _static(name, kind)) for name, kind in _STATIC.items()),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, hosts=hosts)],
            lifespan=self._lifespan,
            exception_handlers={404: self._missing, _DamagedFormError: self._refused},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._monitor:
            self._live.start()
            self._running = True
            try:
                yield
            finally:
                self._running = False
                await self._jobs.aclose()
                await self._live.aclose()

    def _view(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            identity = self._identity(request)
            return self._ask_to_sign_in(request) if identity is None else await self._shown(request, view, identity)

        return answer

    async def _shown(self, request: Request, view: View, identity: Identity, patience: float = _PATIENCE) -> Response:
        """Answer with a view, or with why there is none."""
        if not self._running:
            text = "The page was not started: run its lifespan with page.router.lifespan_context(page).\n"
            return PlainTextResponse(text, 503)
        try:
            async with asyncio.timeout(patience):
                page = await view(Asked(request, self._monitor, self._live, self._bodies, self._jobs))
            self._live.see(page.shown)
            return self._rendered(request, page, identity)
        except NoSuchPageError as error:
            page = _trouble(404, "Not found", str(error))
        except TimeoutError as error:
            page = _trouble(504, "No answer", str(error) or f"There was no answer within {patience:g} s.")
        except UnsupportedError as error:
            page = _trouble(501, "This queue has no such thing", str(error))
        except (PressureError, OSError) as error:
            page = _trouble(503, "This was not done", str(error))
        except Exception:  # what it says may be anything
            logger.exception("the page %r failed", request.scope["path"])
            page = _trouble(500, "Something failed", "The log of the page says what.")
        return self._rendered(request, page, identity)

    async def _act(self, request: Request) -> Response:
        """Ask whether to change a queue, and change it."""
        identity = self._identity(request)
        if identity is None:
            return self._ask_to_sign_in(request)
        if identity.role != "operator":
            return self._rendered(request, _FORBIDDEN, identity)
        typed: Form | None = None
        if request.method == "POST":
            typed = await _form(request)
            if not identity.by_header and not self._is_ours(request, identity, typed):
                return self._rendered(request, _EXPIRED, identity)

        async def view(asked: Asked) -> Page:
            return await changes.change(asked, identity, typed)

        return await self._shown(request, view, identity, actions.DEADLINE + _PATIENCE)

    def _rendered(self, request: Request, page: Page, identity: Identity | None) -> Response:
        if request.query_params.get("format") == "json":
            return json_of(page)
        signed_in = identity is not None and COOKIE in request.cookies and bool(self._access.tokens)
        may_act = self._actions and identity is not None and identity.role == "operator"
        frame = frame_of(identity, self._access.csrf(identity), may_act, signed_in)
        return self._renderer.html(request, page, frame)

    def _identity(self, request: Request) -> Identity | None:
        return self._access.identify(request.headers, request.cookies)

    def _is_ours(self, request: Request, identity: Identity | None, form: dict[str, str]) -> bool:
        """Whether a form comes from a page of ours."""
        return _same_site(request) and self._access.csrf_fits(identity, form.get("csrf", ""))

    def _ask_to_sign_in(self, request: Request) -> Response:
        is_person = "text/html" in request.headers.get("accept", "") and request.query_params.get("format") != "json"
        if not (is_person and self._access.tokens):
            challenge = {"WWW-Authenticate": 'Basic realm="apressure", charset="UTF-8"'} if self._access.tokens else {}
            return PlainTextResponse("Sign in first: send a token, or ask the proxy in front.\n", 401, challenge)
        root = request.scope.get("root_path", "")
        place = request.scope["path"].removeprefix(root).lstrip("/")
        query = request.scope["query_string"].decode("latin-1")
        return RedirectResponse(url_of(root, "login", next=f"{place}?{query}" if query else place), 303)

    async def _login(self, request: Request) -> Response:
        next_page = request.query_params.get("next", "")
        page = Page("login.html", "Sign in", {"next": next_page, "wrong": False}, live=False)
        if request.method == "POST":
            form = await _form(request)
            if not self._is_ours(request, None, form):
                return self._rendered(request, _EXPIRED, None)
            token = self._access.sign_in(form.get("token", ""))
            if token is not None:
                root = str(request.scope.get("root_path", ""))
                response = RedirectResponse(_inside(root, next_page), 303)
                response.set_cookie(
                    COOKIE, self._access.session(token), SESSION, path=root or "/",
                    secure=request.url.scheme == "https", httponly=True, samesite="strict",
                )  # fmt: skip
                return response
            logger.warning("a wrong token was given to the page from %s", request.client and request.client.host)
            page = Page("login.html", "Sign in", {"next": next_page, "wrong": True}, status=403, live=False)
        return self._rendered(request, page, None)

    async def _logout(self, request: Request) -> Response:
        identity = self._identity(request)
        form = await _form(request)
        if not self._is_ours(request, identity, form):
            return self._rendered(request, _EXPIRED, identity)
        root = str(request.scope.get("root_path", ""))
        response = RedirectResponse(url_of(root, "login"), 303)
        response.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
        return response

    async def _events(self, request: Request) -> Response:
        if self._identity(request) is None:
            return PlainTextResponse("Sign in first.\n", 401)
        if not self._running or self._live.full:
            return PlainTextResponse("There are too many open pages.\n", 503, {"Retry-After": "10"})
        return StreamingResponse(
            self._live.stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n") if self._running else PlainTextResponse("not started\n", 503)

    async def _missing(self, request: Request, _: Exception) -> Response:
        identity = self._identity(request)
        if identity is None:
            return self._ask_to_sign_in(request)
        return self._rendered(request, _trouble(404, "Not found", "There is no such page."), identity)

    async def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, _DamagedFormError) else 400
        return self._rendered(request, _trouble(status, "Nothing was done", str(error)), self._identity(request))


class _DamagedFormError(Exception):
    """What came is no whole form, so nothing is done.

    Args:
        status: The status of the answer.
        text: Why, for people.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _trouble(status: int, title: str, text: str) -> Page:
    return Page("trouble.html", title, {"error": text}, status=status, live=status in (503, 504))


_EXPIRED: Final = _trouble(
    403, "Expired", "This form is too old, or comes from another site. Go back, load the page again, and repeat it."
)

_FORBIDDEN: Final = _trouble(403, "Not allowed", "Only operators may change queues.")


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return FileResponse(Path(__file__).parent / "static" / name, media_type=kind)

    return answer


async def _form(request: Request) -> Form:
    """Return the fields of a form.

    Raises:
        _DamagedFormError: It is too large, not whole, or no such form. A part of it could mean more than the whole.
    """
    try:
        body = await request.body()
    except ClientDisconnect:
        raise _DamagedFormError(400, f"The form did not come whole, or has more than {LONGEST_BODY:,} bytes.") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != _FORM:
        raise _DamagedFormError(415, f"Send the form as {_FORM}.")
    try:
        found = parse_qs(body.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise _DamagedFormError(413, f"The form has more than {_FIELDS:,} fields. Send fewer at a time.") from None
    form = Form((name, values[-1]) for name, values in found.items())
    form.chosen = tuple(found.get("chosen", ()))
    form.handles = tuple(found.get("letter", ()))
    return form


def _same_site(request: Request) -> bool:
    """Whether a form came from a page of this host, as far as the browser says."""
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _inside(root: str, page: str) -> str:
    """Return the URL of a page of ours: never one of another site."""
    plain = page.isascii() and page.isprintable() and "\\" not in page and "//" not in page.partition("?")[0]
    return f"{url_of(root, '')}{page}" if plain and not page.startswith("/") else url_of(root, "")
