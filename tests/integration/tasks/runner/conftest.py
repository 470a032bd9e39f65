"""A queue of jobs on one server: a Runner does the same on each, and the chaos test runs on all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apressure.embedded import EmbeddedServer
from apressure.tasks import TaskClient
from tests.integration.tasks.runner.jobs import Jobs
from tests.servers import refresh


@pytest.fixture
async def jobs(valkey: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Jobs]:
    refresh(valkey)
    async with TaskClient(valkey.url) as client:
        yield Jobs(client, valkey.url, tmp_path)
