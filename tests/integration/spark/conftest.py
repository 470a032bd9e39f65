"""A queue for Spark's steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apressure.connection.blocking import Blocking
from apressure.embedded import EmbeddedServer
from apressure.spark.options import Options
from apressure.spark.steps import Steps
from tests.integration.spark.place import Place
from tests.servers import admin


@pytest.fixture
def place(url: str, server: EmbeddedServer) -> Iterator[Place]:
    blocking = Blocking(Options.of({"url": url, "queue": "jobs"}).settings())
    steps = Steps(blocking, "__pressure__", "jobs")
    steps.create(0)
    with admin(server) as plain:
        yield Place(url, plain, steps)
    blocking.close()
