"""What the tests beside plain clients share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.reference import connect


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    """A plain client to look with, and for what only a test does."""
    with connect(url) as client:
        yield client


@pytest.fixture(params=[True, False], ids=["scripts", "plain"])
def scripting(request: pytest.FixtureRequest) -> bool:
    """Whether our queue runs scripts or the specification's commands."""
    return bool(request.param)
