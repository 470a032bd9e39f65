"""A queue for Spark's steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apressure.embedded import EmbeddedServer
from tests.integration.spark.support import Jobs, connect
from tests.servers import admin


@pytest.fixture
def jobs(url: str, server: EmbeddedServer) -> Iterator[Jobs]:
    connection = connect(url)
    with admin(server) as plain:
        made = Jobs(url, plain, connection)
        made.source.create(0)
        yield made
    connection.close()
