"""The page: watches queues in a browser, by itself or inside a Starlette or FastAPI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apressure.exceptions import MissingExtraError

if TYPE_CHECKING:
    from apressure.web.application import app

__all__ = ["app"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import `app` when it is used: it needs packages of the extra `web`."""
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from apressure.web.application import app
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("jinja2", "starlette"):
                raise
            raise missing(error) from error
        return app


def missing(error: ImportError) -> MissingExtraError:
    """Return what says which package is missing, and how to install it."""
    return MissingExtraError(f"the page needs the package {error.name}: pip install 'apressure[web]'", extra="web")
