"""Makes answers of what views show: HTML by templates, or the same data as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from apressure.logs import escaped
from apressure.telemetry.sampler import Sampler
from apressure.telemetry.states import duration, size_text
from apressure.web.access import Identity
from apressure.web.actions import ACTIONS
from apressure.web.charts import HEIGHT, WIDTH, charts


@dataclasses.dataclass(frozen=True)
class Page:
    """What a view shows.

    Attributes:
        template: The name of its template.
        title: Its title.
        data: What it says: the JSON twin is this, and the template shows it.
        more: What only the template needs.
        shown: What looks at the queues on it, which are looked at first while somebody sees them.
        status: The HTTP status.
        live: It is loaded again while it is open.
    """

    template: str
    title: str
    data: dict[str, Any]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    shown: Iterable[Sampler] = ()
    status: int = 200
    live: bool = True


def url_of(root: str, path: str, **query: object) -> str:
    """Return the URL of a page. What is None or empty in the query is left out. Any bytes in a name survive."""
    given = {key: str(value) for key, value in query.items() if value not in (None, "", False)}
    return f"{quote(root)}/{path}" + (
        f"?{urlencode(given, errors='surrogateescape', quote_via=quote)}" if given else ""
    )


class Renderer:
    """Renders pages."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("apressure.web"), autoescape=True, undefined=jinja2.StrictUndefined,
            finalize=_visible, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters.update(
            quoted=_quoted, count=_count, rate=_rate, duration=_duration, moment=_moment, size=size_text, words=_words
        )
        self._templates.globals.update(charts=charts, chart_width=WIDTH, chart_height=HEIGHT, all_actions=ACTIONS)

    def html(self, request: Request, page: Page, frame: dict[str, Any]) -> HTMLResponse:
        """Return a page as HTML."""
        root = str(request.scope.get("root_path", ""))

        def url(path: str, **query: object) -> str:
            return url_of(root, path, **query)

        template = self._templates.get_template(page.template)
        text = template.render(
            page=page, data=page.data, more=page.more, url=url, queue_url=_queue_url(url), now=time.time(), **frame
        )
        return HTMLResponse(text, page.status)


def json_of(page: Page) -> Response:
    """Return the JSON twin of a page."""
    text = json.dumps(page.data, default=_plain, allow_nan=False)
    return Response(text, page.status, media_type="application/json")


def frame_of(identity: Identity | None, csrf: str, actions: bool, signed_in: bool) -> dict[str, Any]:
    """Return what the frame around each page shows."""
    return {"identity": identity, "csrf": csrf, "actions": actions, "can_sign_out": signed_in}


def _queue_url(url: Callable[..., str]) -> Callable[..., str]:
    def queue_url(row: dict[str, Any], view: str = "", **query: object) -> str:
        return url("queue" + (f"/{view}" if view else ""), at=row["address"], server=row.get("at_server"), **query)

    return queue_url


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not data of JSON")


def is_plain(text: str) -> bool:
    """Whether a page shows a text as it is, and a form sends it back unchanged."""
    return "\r" not in text and _visible(text) == text


def _visible(value: Any) -> Any:
    """Make control characters visible, and what is not Unicode: names may have any bytes."""
    if isinstance(value, str) and not value.isprintable() and not hasattr(value, "__html__"):
        return "\n".join(map(escaped, value.split("\n")))
    return "" if value is None else value


def _quoted(text: str) -> str:
    """Return an id as forms have it: it may have any bytes."""
    return quote(text, safe="", errors="surrogateescape")


_UNKNOWN: Final = "-"


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _duration(value: float | None) -> str:
    return _UNKNOWN if value is None else "never" if math.isinf(value) else duration(value)


def _moment(value: float | None) -> str:
    """Return a time as text, in UTC: pages may be read in another zone than the server's."""
    try:
        return _UNKNOWN if value is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    except (OverflowError, OSError, ValueError):
        return _UNKNOWN  # another program may have written it


def _words(name: str) -> str:
    return name.replace("_", " ")
