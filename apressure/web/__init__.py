"""The page: watches queues in a browser, by itself or inside a Starlette or FastAPI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apressure.exceptions import MissingExtraError

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["app"]


def app(*queues: str, **options: Any) -> Starlette:
    """Return the page as an application: see `apressure.web.application.app`.

    Raises:
        MissingExtraError: Starlette or Jinja is not installed.
    """
    try:
        import jinja2  # noqa: F401  (checks that it is installed)
        import starlette  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"the page needs the package {error.name}: pip install 'apressure[web]'", extra="web"
        ) from error
    from apressure.web import application

    return application.app(*queues, **options)
